"""Does a parallel shape agree with the world, the model and the batch? One small function a rule."""

from collections.abc import Iterator, Sequence

from traincast.mesh.layers import balanced_layers, run_lengths
from traincast.mesh.problems import Problem, either, near_divisors, near_multiples
from traincast.mesh.request import ShapeRequest


def world_problems(shape: ShapeRequest) -> Iterator[Problem]:
    """The world against tp*cp*pp, and against dp where that is given."""
    world, model = shape.world, shape.tp * shape.cp * shape.pp
    if world is None:
        return
    spelled = f"tp {shape.tp} * cp {shape.cp} * pp {shape.pp}"
    if world % model:
        fixes = [f"world {either(near_multiples(world, model))}"]
        fixes += [
            f"{axis} {largest}"
            for axis in ("tp", "cp", "pp")
            if (largest := _fitting(getattr(shape, axis), world, model)) is not None
        ]
        yield Problem(f"world {world} is not a multiple of {spelled} = {model}", ", or ".join(fixes))
    elif shape.dp is not None and shape.dp * model != world:
        yield Problem(
            f"world {world} is not {spelled} * dp {shape.dp} = {model * shape.dp}",
            f"dp {world // model}, or world {model * shape.dp}",
        )


def _fitting(size: int, world: int, model: int) -> int | None:
    """The largest smaller divisor of an axis' size with which tp*cp*pp divides the world."""
    others = model // size
    return next((d for d in range(size - 1, 0, -1) if size % d == 0 and world % (others * d) == 0), None)


def model_problems(shape: ShapeRequest) -> Iterator[Problem]:
    """The model against tp, pp, vpp, ep and cp."""
    yield from _head_problems(shape)
    axis, ranks = ("etp", shape.etp or 1) if shape.experts else ("tp", shape.tp)
    if shape.ffn_hidden is not None and shape.ffn_hidden % ranks:
        yield Problem(
            f"ffn_hidden {shape.ffn_hidden} does not divide over {axis} {ranks}",
            f"{axis} {either(near_divisors(shape.ffn_hidden, ranks))}",
        )
    yield from _layer_problems(shape)
    yield from _expert_problems(shape)
    yield from _sequence_problems(shape)


def _head_problems(shape: ShapeRequest) -> Iterator[Problem]:
    heads, kv_heads, tp = shape.heads, shape.kv_heads, shape.tp
    if heads is not None and heads % tp:
        yield Problem(
            f"{heads} heads do not divide over tp {tp}",
            f"tp {either(near_divisors(heads, tp))}, or {either(near_multiples(heads, tp))} heads",
        )
    if kv_heads is None:
        return
    if heads is not None and heads % kv_heads:
        yield Problem(
            f"{heads} heads do not divide over {kv_heads} kv_heads",
            f"{either(near_divisors(heads, kv_heads))} kv_heads",
        )
    if kv_heads % tp == 0:
        return
    if tp % kv_heads == 0:
        yield Problem(
            f"kv_heads {kv_heads} are fewer than tp {tp}: each is held by {tp // kv_heads} ranks",
            f"tp {kv_heads} holds each once",
            "warning",
        )
        return
    fits = [t for t in range(1, 2 * tp) if (kv_heads % t == 0 or t % kv_heads == 0) and (heads or t) % t == 0]
    around = [t for t in fits if t < tp][-1:] + [t for t in fits if t > tp][:1]
    yield Problem(f"kv_heads {kv_heads} against tp {tp}: neither divides the other", f"tp {either(around)}")


def _layer_problems(shape: ShapeRequest) -> Iterator[Problem]:
    layers, pp, vpp = shape.layers, shape.pp, shape.parts // shape.pp
    if shape.vpp > 1 and pp == 1:
        yield Problem(f"interleaving (vpp {shape.vpp}) needs a pipeline, but pp is {pp}", "vpp 1, or pp 2 or more")
    if shape.stage_layers is not None:
        yield from _stage_layer_problems(shape, shape.stage_layers)
        return
    if layers is None or layers % (pp * vpp) == 0:
        return
    message = f"{layers} layers do not divide over {_chunks_text(shape)}"
    splits = _uneven_splits(layers, pp, vpp)
    if shape.uneven and splits:
        yield Problem(
            f"{message}: the stages are uneven, {splits[0]}",
            "give stage_layers to split otherwise",
            "warning",
        )
        return
    fixes = [f"pp {either(near_divisors(layers, pp))}"] if vpp == 1 else _vpp_fixes(layers, pp)
    fixes += [f"uneven stages if you ask for them: {either(splits)}"] if splits else []
    yield Problem(message, ", or ".join(fixes))


def _chunks_text(shape: ShapeRequest) -> str:
    """The chunks that the layers are cut into; where a stage holds more copies of the model than one, that too."""
    pp, chunks = shape.pp, shape.parts // shape.pp
    if chunks == shape.vpp:
        return f"pp {pp} * vpp {chunks} = {shape.parts} chunks"
    cut = f"pp {pp} = {shape.parts}" if chunks == 1 else f"pp {pp} * {chunks} = {shape.parts}"
    return f"{cut} chunks of a copy of the model (vpp {shape.vpp}: a stage holds {shape.vpp // chunks} copies)"


def _vpp_fixes(layers: int, pp: int) -> list[str]:
    if layers % pp:
        return [f"pp {either(near_divisors(layers, pp))} with vpp 1"]
    return [f"vpp {either([v for v in range(1, layers // pp + 1) if layers // pp % v == 0][:4])}"]


def _uneven_splits(layers: int, pp: int, vpp: int) -> list[str]:
    """The balanced splits there are, as text: with embedding and head counted as layers, and plain."""
    splits = []
    if (layers + 2) % (pp * vpp) == 0:
        counted = run_lengths(balanced_layers(layers, pp, vpp, embedding_as_layer=True))
        splits.append(f"{counted} with embedding and head counted as layers")
    if layers >= pp * vpp:
        splits.append(run_lengths(balanced_layers(layers, pp, vpp)))
    return splits


def _stage_layer_problems(shape: ShapeRequest, split: Sequence[int]) -> Iterator[Problem]:
    chunks = shape.parts
    if len(split) != chunks:
        yield Problem(
            f"stage_layers has {len(split)} entries for {_chunks_text(shape)}",
            "one entry a chunk, in pipeline order",
        )
    if min(split, default=0) < 0:
        yield Problem(f"stage_layers holds {min(split)}", "0 or more layers a chunk")
    if shape.layers is not None and sum(split) != shape.layers:
        total = f"{' + '.join(map(str, split))} = {sum(split)}" if len(split) <= 8 else f"adds up to {sum(split)}"
        yield Problem(
            f"stage_layers {total}, but the model has {shape.layers} layers", _split_fix(shape.layers, chunks)
        )


def _split_fix(layers: int, chunks: int) -> str:
    return f"such as {run_lengths(balanced_layers(layers, chunks))}" if layers >= chunks else "fewer chunks"


def _expert_problems(shape: ShapeRequest) -> Iterator[Problem]:
    experts, ep = shape.experts, shape.ep
    if experts is None:
        return
    if experts < 2 and ep > 1:
        yield Problem(f"ep {ep} but the model has {experts} experts", "ep 1, or a model with experts")
    elif experts % ep:
        yield Problem(f"{experts} experts do not divide over ep {ep}", f"ep {either(near_divisors(experts, ep))}")


def _sequence_problems(shape: ShapeRequest) -> Iterator[Problem]:
    sequence, cp, tp = shape.sequence, shape.cp, shape.tp
    if sequence is None:
        return
    blocks = 2 * cp if shape.causal else cp
    if cp > 1 and sequence % blocks:
        why = f"2 * cp {cp} = {blocks}, which balances causal attention" if shape.causal else f"cp {cp}"
        share = sequence // 2 if shape.causal else sequence
        fixes = [f"cp {either(near_divisors(share, cp))}"] if blocks * share == sequence * cp else []
        yield Problem(
            f"sequence {sequence} is not a multiple of {why}",
            ", or ".join([*fixes, f"sequence {either(near_multiples(sequence, blocks))}"]),
        )
    elif shape.sequence_parallel and sequence % (cp * tp):
        spelled = f"cp {cp} * tp {tp} = {cp * tp}"
        yield Problem(
            f"sequence {sequence} is not a multiple of {spelled}, which sequence parallelism needs",
            f"sequence {either(near_multiples(sequence, cp * tp))}, or no sequence_parallel",
        )


def batch_problems(shape: ShapeRequest, dp: int) -> Iterator[Problem]:
    """The batch against microbatch*dp, and the microbatches m against pp."""
    batch, micro = shape.global_batch, shape.microbatch
    if batch is None:
        return
    if batch % (micro * dp):
        yield from _ragged_problems(shape, dp, batch)
        if not shape.ragged:
            return
    yield from _pipeline_problems(shape, dp, m=-(-batch // (micro * dp)))


def _ragged_problems(shape: ShapeRequest, dp: int, batch: int) -> Iterator[Problem]:
    step = shape.microbatch * dp
    message = f"global batch {batch} is not a multiple of microbatch {shape.microbatch} * dp {dp} = {step}"
    fixes = [f"global batch {either(near_multiples(batch, step))}"]
    if batch % shape.microbatch == 0:
        fixes.append(f"dp {either(near_divisors(batch // shape.microbatch, dp))}")
    if shape.ragged and batch >= dp:
        yield Problem(f"{message}: the last microbatch is smaller", fixes[0], "warning")
        return
    yield Problem(message, ", or ".join(fixes))


def _are(m: int) -> str:
    return "1 microbatch is" if m == 1 else f"{m} microbatches are"


def _pipeline_problems(shape: ShapeRequest, dp: int, m: int) -> Iterator[Problem]:
    pp, step = shape.pp, shape.microbatch * dp
    if shape.in_groups and shape.vpp > 1 and pp > 1 and m % pp:
        fits = [p for p in range(2, pp) if m % p == 0 and (shape.layers or 0) % (p * shape.vpp) == 0]
        depths = [f"pp {fits[-1]}"] if fits else []
        yield Problem(
            f"interleaving (vpp {shape.vpp}): {_are(m)} not a multiple of pp {pp}",
            ", or ".join([f"global batch {either([n * step for n in near_multiples(m, pp)])}", *depths, "vpp 1"]),
        )
    elif m < pp:
        yield Problem(
            f"{_are(m)} fewer than pp {pp} stages, so some stages always wait",
            f"global batch {pp * step} or more",
            "warning",
        )
