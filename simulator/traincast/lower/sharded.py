"""Gathers of parameters and reductions of gradients inside the passes of a chunk: ZeRO-2, ZeRO-3, FSDP and HSDP.

A chunk is cut into units: its root (embedding, head, final norm) and its layers. Under ZeRO-3 the root is gathered in
front of the forward pass and kept; each layer is gathered on the dp stream while the layers before it compute, no more
than `prefetch` of them ahead, and again in the backward pass where it was dropped. Gradients of a layer are
reduce-scattered on the same stream beside the rest of the backward pass, those of the root at its end; where groups of
ranks shard among themselves, each sums its part over the replicas on a stream of its own (HSDP).

References
----------
[1] Zhao et al. 2023, "PyTorch FSDP" (arXiv:2304.11277), §3.3: one communicator, so gathers and reductions queue up in
    issue order; the rate limiter lets two gathers be in flight.
[2] Rajbhandari et al. 2020, "ZeRO", §7.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from traincast.errors import ShapeError
from traincast.lower.chunk import Segment
from traincast.lower.job import Job
from traincast.lower.matrices import collected, fetched, uses
from traincast.lower.offload import host_bytes_per_s
from traincast.memory.sharding import Sharding, sharding
from traincast.model.operators import ACTIVATION_BYTES, Collective, CollectiveAxis, HostCopy, MemoryBound, Operator
from traincast.model.parameters import embedding_parameters, head_parameters, layer_parameters, norm_parameters
from traincast.topology import Span

BESIDE_ALL = 10**9
"""More operators than a chunk has: a reduction runs beside all that follows, and the chunk ends when it has."""

MASTER_BYTES = 4
"""Single-precision parameters, as shards hold them."""

MAIN_GRADIENT_TRAFFIC = 8
"""Bytes for each element of a rank's own part that is added to single-precision gradients: a read and a write."""


@dataclass(frozen=True)
class Unit:
    """A part of a chunk in the order of a pass; `layer` tells layers from what belongs to the root."""

    segments: tuple[Segment, ...]
    layer: bool = True

    @property
    def computes(self) -> int:
        """Compute operators in it."""
        return sum(not isinstance(op, Collective | HostCopy) for segment in self.segments for op in segment.operators)

    def around(self, before: Sequence[Operator] = (), after: Sequence[Operator] = ()) -> "Unit":
        """The unit with operators in front and behind, in the phases of its first and last segment."""
        first, *rest = self.segments
        segments = [replace(first, operators=(*before, *first.operators)), *rest]
        segments[-1] = replace(segments[-1], operators=(*segments[-1].operators, *after))
        return replace(self, segments=tuple(segments))


@dataclass(frozen=True)
class Root:
    """Which of the root's parameters a chunk holds."""

    embedding: bool
    head: bool

    def parameters(self, job: Job) -> int:
        """Their number on one tensor-parallel rank; a tied head counts once."""
        model, tp = job.model, job.mesh.tp
        count = embedding_parameters(model, tp) if self.embedding else 0
        if self.head:
            count += norm_parameters(model)
            count += 0 if self.embedding and model.tied_embeddings else head_parameters(model, tp)
        return count


def sharding_of(job: Job) -> Sharding:
    """How the job's replicas share their states."""
    return sharding(job.mesh, job.recipe)


def shard_group(job: Job, *, sharing: bool = False) -> int | None:
    """Size of the groups that shard among themselves where they are smaller than a gradient group, else None.

    Raises ShapeError where flows are to share links, which knows gradients of whole groups only.
    """
    how = sharding_of(job)
    if how.shards == 1 or how.replicas == 1:
        return None
    if sharing and not how.sums_whole:
        raise ShapeError(
            f"gradients of groups of {how.shards} ranks, summed over {how.replicas} groups, cannot share links yet",
            fix="price links statically (--sharing static), or leave training.fsdp_shard out",
        )
    return how.shards


def in_passes(job: Job) -> bool:
    """Whether replicas communicate inside passes, so that they meet there."""
    how = sharding_of(job)
    return how.gathers == "pass" or how.reduces_each


def forward_pass(job: Job, root: Root, units: Sequence[Unit], *, gathers: bool | None = None) -> tuple[Segment, ...]:
    """Segments of a forward pass over units in order, with the gathers of ZeRO-3.

    `gathers` True puts them in although the passes of this job do without: what the first pass of a step costs where
    parameters are gathered once.
    """
    how = sharding_of(job)
    if not (how.gathers == "pass" if gathers is None else gathers):
        return _flat(units)
    first, *others = _gathered(job, units)
    whole = (*_gather(job, "root", root.parameters(job)), *first.operators)
    return (replace(first, operators=whole), *others)


def backward_pass(job: Job, root: Root, units: Sequence[Unit]) -> tuple[Segment, ...]:
    """Segments of a backward pass over units in order, with gathers and reductions inside it."""
    how = sharding_of(job)
    if how.reduces_each:
        reduced = [_reduced(job, how, unit) if unit.layer else unit for unit in units]
        last = tuple(_reduce(job, how, "root", root.parameters(job)))
        units = [*reduced[:-1], reduced[-1].around(after=last)]
    return _gathered(job, units) if how.again else _flat(units)


def _flat(units: Sequence[Unit]) -> tuple[Segment, ...]:
    return tuple(segment for unit in units for segment in unit.segments)


def _gathered(job: Job, units: Sequence[Unit]) -> tuple[Segment, ...]:
    """Segments of the units with the gather of each layer `prefetch` units in front of it."""
    recipe, size = job.recipe, layer_parameters(job.model, job.mesh.tp)
    ahead = recipe.gathers_ahead
    copied = [unit.around(before=_copy_out(job, size)) if unit.layer else unit for unit in units]
    if ahead and recipe.prefetch_bytes is not None:
        most = int(recipe.prefetch_bytes / ACTIVATION_BYTES)
        found = uses([(unit.segments, unit.layer) for unit in copied], size)
        return tuple(fetched(_flat(copied), found, most, lambda count, behind: _gather(job, "matrix", count, behind)))
    gathered = []
    for place, unit in enumerate(copied):
        due = range(ahead + 1) if place == 0 else (place + ahead,)
        gathers: list[Operator] = []
        for wanted in due:
            if wanted < len(copied) and copied[wanted].layer:
                behind = sum(one.computes for one in copied[place:wanted])
                gathers += _gather(job, "layer", size, behind)
        gathered.append(unit.around(before=gathers))
    return _flat(gathered)


def _gather(job: Job, name: str, parameters: int, behind: int = 0) -> Iterator[Operator]:
    """All-gather of parameters in the type that the passes compute in; single precision where products cast them."""
    if parameters:
        size = parameters * _gathered_width(job, name)
        on_host = job.recipe.offload_states == "parameters"
        if on_host:
            own = size / sharding_of(job).shards
            yield HostCopy(f"{name}.parameters.in", own, "in", host_bytes_per_s(job.cluster, job.seat))
        yield Collective(f"{name}.parameters.all_gather", "all_gather", "dp", size, behind=behind, after_copies=on_host)


def _gathered_width(job: Job, name: str) -> float:
    """Bytes of a gathered parameter: four where products cast it (`autocast`), one where a layer's weights are gathered
    in fp8 (norms and biases count along)."""
    if job.profile.traits.autocast:
        return float(MASTER_BYTES)
    return 1.0 if name != "root" and gathers_fp8(job) else float(ACTIVATION_BYTES)


def gathers_fp8(job: Job) -> bool:
    """Whether weights of linear layers come in fp8."""
    return job.recipe.in_fp8 and job.recipe.fp8_gather and sharding_of(job).gathers in ("pass", "step")


def _copy_out(job: Job, parameters: int) -> tuple[Operator, ...]:
    """Stacks that gather into a buffer copy each parameter out of it, and cast their part of a master copy into it."""
    if not job.profile.traits.copies_gathered:
        return ()
    width = _gathered_width(job, "layer")
    cast = (MASTER_BYTES + width) / sharding_of(job).shards if job.profile.traits.shards_master else 0.0
    return (MemoryBound("layer.parameters.copy", (2.0 * width + cast) * parameters),)


def _reduced(job: Job, how: Sharding, unit: Unit) -> Unit:
    """A layer with the reduction of its gradients behind it, or matrix by matrix inside it."""
    layer = layer_parameters(job.model, job.mesh.tp)
    if job.recipe.prefetch_bytes is None:
        return unit.around(after=tuple(_reduce(job, how, "layer", layer)))
    segments, done = collected(unit.segments, lambda size: _collect(job, how, "matrix", size))
    rest = (*_collect(job, how, "layer", layer - done), *_copy_in(job, how, "layer", layer))
    return replace(unit, segments=segments).around(after=rest)


def _reduce(job: Job, how: Sharding, name: str, parameters: int) -> Iterator[Operator]:
    """Gradients into the buffer that is reduced, their reduction, and its sum into the rank's own part."""
    if parameters:
        yield from _copy_in(job, how, name, parameters)
        yield from _collect(job, how, name, parameters)


def _copy_in(job: Job, how: Sharding, name: str, parameters: int) -> Iterator[Operator]:
    """Gradients into the buffer that is reduced, and what was reduced into the rank's own part.

    Under autocast (FSDP1) they are single precision: joined along the flat parameter (4 + 4), cast to the type on the
    wire (4 + w) and divided there (w + w), as `_post_backward_hook` of PyTorch 1.13's fully_sharded_data_parallel.py.
    """
    width, own = float(job.recipe.reduce_bytes), parameters / how.shards
    autocast = job.profile.traits.autocast
    whole = 3.0 * MASTER_BYTES + 3.0 * width if autocast else ACTIVATION_BYTES + width
    traffic = whole * parameters + (width + MAIN_GRADIENT_TRAFFIC) * own
    yield MemoryBound(f"{name}.gradients.copy", traffic, calls=3 if autocast else 1)


def _collect(job: Job, how: Sharding, name: str, parameters: int) -> Iterator[Operator]:
    """Reduction of gradients over the ranks that shard them, and over the groups of such ranks."""
    if not parameters:
        return
    width, behind = float(job.recipe.reduce_bytes), BESIDE_ALL if job.recipe.overlap_dp else 0
    own = parameters / how.shards
    if how.shards > 1:
        yield Collective(f"{name}.reduce_scatter", "reduce_scatter", "dp", width * parameters, behind=behind)
    if how.replicas > 1:
        axis: CollectiveAxis = "replica" if how.shards > 1 else "dp"
        yield Collective(f"{name}.gradients.all_reduce", "all_reduce", axis, width * own, behind=behind)
    if job.recipe.offload_states != "none":
        yield HostCopy(f"{name}.gradients.out", width * own, "out", host_bytes_per_s(job.cluster, job.seat))


def owners(job: Job, root: Root, layers: int) -> int:
    """Ranks of a shard group that own updated matrices, where each owns whole ones: no more than there are matrices.

    A layer has four, or five with a gated MLP: query, key and value in one, output, and those of the MLP. Norms and
    biases go with them. Embedding and head are one each, or one together where they are tied and on one rank.

    Reference: InternEvo, solver/optimizer/utils.py (ParamBcastSyncHandler: the next rank once the share is full).
    """
    ends = sum((root.embedding, root.head and not (root.embedding and job.model.tied_embeddings)))
    return min(sharding_of(job).shards, layers * (5 if job.model.gated_mlp else 4) + ends)


def family_of(axis: str, spans: Mapping[str, Span]) -> str:
    """The family of groups in which a collective of an axis runs: that of the dp axis is the shard group."""
    return "shard" if axis == "dp" and "shard" in spans else axis


def pass_spans(job: Job, spans: Mapping[str, Span], single: Span) -> dict[str, Span]:
    """Spans by axis of the collectives inside a pass; `single` where the rank is alone.

    Across nodes gathers and reductions reach the share `sharded.efficiency` of what other collectives do.
    """
    found = {"tp": spans.get("tp", single)}
    if in_passes(job) or sharding_of(job).gathers == "step":
        share = job.profile["sharded.efficiency"]
        for axis in ("dp", "replica"):
            span = spans.get(family_of(axis, spans), single)
            found[axis] = span if share == 1.0 else replace(span, inter_bytes_per_s=share * span.inter_bytes_per_s)
    return found
