"""Turns a published row into what a forecast needs: model, mesh, every recipe that the row leaves open."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, cast

from traincast.recipe import Recipe, ScheduleName
from traincast.validate.context import context_of_row, offloading_of_row
from traincast.validate.inferred import as_stated_by_source
from traincast.validate.rows import PublishedRow, RowSkippedError
from traincast.validate.sharded import default_bucket, sharding_of_row, understood
from traincast.validate.stack import fp8_of_row, messages_of_row, overlap_of_row, said, silent_fields

if TYPE_CHECKING:
    from traincast.mesh import Mesh
    from traincast.model import ModelShape
    from traincast.profile import Profile

NEMOTRON = (
    "Nemotron: rotary positions, no biases, an output matrix of its own (NeMo-Framework-Launcher 089b90e, "
    "conf/training/nemotron/nemotron_8b.yaml)"
)
"""What its published configuration says beside the columns of a table."""

NEMOTRONS = ("Nemotron-4", "Nemotron4", "Nemotron-8B", "Nemotron-15B", "Nemotron-22B", "Nemotron-340B")
"""Names of its transformers; later ones are hybrids."""

RECOMPUTE_MODES = ("none", "selective", "full")
_PRECISIONS = ("fp32", "tf32", "fp16", "bf16", "fp8", "mxfp8")
_FFN_FACTOR = 4
_LARGEST_MICROBATCH = 64

_OTHER_WORK = {
    "lora": "LoRA is not modelled: frozen weights have no gradients and no optimiser states",
    "sft": "fine-tuning is not modelled: packed sequences attend to themselves only, and their lengths are not stated",
}
"""What a row may measure in place of pre-training (column `unusual`), whose forecast would be one of something else."""


@dataclass(frozen=True)
class Candidate:
    """One way in which a row may have run.

    `chosen` tells the value of each thing that the row leaves open, `notes` what else was assumed for this
    recipe.
    """

    recipe: Recipe
    chosen: tuple[str, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Case:
    """A row as traincast sees it: one model on one mesh, and a candidate for each choice that the row leaves
    open.

    `notes` says what was assumed where the row is silent.
    """

    row: PublishedRow
    model: "ModelShape"
    mesh: "Mesh"
    candidates: tuple[Candidate, ...]
    notes: tuple[str, ...]


def refuse_unmodelled(row: PublishedRow) -> None:
    """Raises RowSkippedError for what traincast does not model yet."""
    from traincast.schedule import SCHEDULES

    unusual = row.text("unusual")
    refusals = (
        (unusual in _OTHER_WORK, _OTHER_WORK.get(unusual, "")),
        ((row.number("experts") or 0) > 1, "experts are not modelled yet"),
        (row.flag("mla") is True, "latent attention is not modelled yet"),
        (
            row.text("schedule") not in ("", *SCHEDULES),
            f"schedule {row.text('schedule')!r} is not modelled yet",
        ),
        (
            not understood(row.text("recompute")),
            f"recomputation {row.text('recompute')!r} is not modelled yet",
        ),
        (
            row.text("precision") not in _PRECISIONS,
            f"precision {row.text('precision')!r} is not modelled yet",
        ),
    )
    for refused, reason in refusals:
        if refused:
            raise RowSkippedError(reason)


def build_case(row: PublishedRow, profile: "Profile | None" = None) -> Case:
    """The case of a row; what the row does not state its profile's stack decides (`Profile.defaults`).

    Raises RowSkippedError where an essential lacks, ShapeError for a wrong shape.
    """
    refuse_unmodelled(row)
    own, said_of_it = as_stated_by_source(row)
    notes = list(said_of_it)
    model = _model(own, notes)
    if profile is not None and profile.traits.untied:
        model = replace(model, tied_embeddings=False)
    mesh = _mesh(own)
    candidates = tuple(_candidates(own, _Setting(model, mesh, profile), notes))
    if not candidates:
        raise RowSkippedError("no microbatch and no number of chunks that the shape allows")
    return Case(row, model, mesh, candidates, tuple(notes))


def _model(row: PublishedRow, notes: list[str]) -> "ModelShape":
    from traincast.model import ModelShape
    from traincast.model.shape import hidden_per_head

    hidden, heads = row.essential("hidden"), row.essential("heads")
    gated = row.flag("gated_mlp") or False
    ffn = row.count("ffn_hidden")
    if ffn is None:
        ffn = _FFN_FACTOR * hidden
        notes.append("ffn_hidden not stated: 4 x hidden")
    nemotron = row.text("model").startswith(NEMOTRONS)
    if nemotron:
        notes.append(NEMOTRON)
    newer = gated or nemotron
    return ModelShape(
        name=row.text("model") or row.id,
        hidden=hidden,
        layers=row.essential("layers"),
        heads=heads,
        kv_heads=row.count("kv_heads") or heads,
        head_dim=row.count("head_dim") or hidden_per_head(hidden, heads),
        ffn_hidden=ffn,
        vocab=row.essential("vocab"),
        max_positions=row.essential("seq"),
        gated_mlp=gated,
        # what is not a column goes with the MLP: gated ones are Llama's kin, plain ones GPT's
        tied_embeddings=not newer,
        positions="rotary" if newer else "learned",
        norm="rmsnorm" if gated else "layernorm",
        biases=not newer,
    )


def _mesh(row: PublishedRow) -> "Mesh":
    from traincast.mesh import Mesh

    gpus, tp, pp, cp = row.essential("gpus"), row.essential("tp"), row.essential("pp"), row.count("cp") or 1
    dp = row.count("dp") or gpus // (tp * pp * cp)
    if tp * pp * cp * dp != gpus:
        spelled = f"tp {tp} x pp {pp} x dp {dp}" if cp == 1 else f"tp {tp} x cp {cp} x pp {pp} x dp {dp}"
        raise RowSkippedError(f"{spelled} is {tp * pp * cp * dp}, but gpus is {gpus}")
    return Mesh(tp=tp, cp=cp, pp=pp, dp=dp)


@dataclass(frozen=True)
class _Setting:
    """What a recipe is for, and the profile whose stack trains it."""

    model: "ModelShape"
    mesh: "Mesh"
    profile: "Profile | None"


def _candidates(row: PublishedRow, setting: _Setting, notes: list[str]) -> Iterator[Candidate]:
    """Every recipe that the row leaves possible; what is stated has one choice."""
    model, mesh, profile = setting.model, setting.mesh, setting.profile
    base = replace(_base_recipe(row, model, notes), **context_of_row(row, model, mesh, notes))
    silent = silent_fields(row, base, profile, mesh.tp)
    if silent:
        base = replace(base, **silent)
        notes.append(said(cast("Profile", profile), silent))
    base = replace(base, **overlap_of_row(row, profile, mesh.tp))
    microbatches = _microbatches(row, base.global_batch, mesh.dp)
    chunks = _chunk_counts(row, model.layers, mesh.pp)
    modes = (base.recompute,) if "recompute" in silent else _recompute_modes(row)
    for microbatch, vpp, recompute in product(microbatches, chunks, modes):
        chosen: list[str] = []
        for name, value, choices in (
            ("microbatch", microbatch, microbatches),
            ("vpp", vpp, chunks),
            ("recompute", recompute, modes),
        ):
            if len(choices) > 1:
                chosen.append(f"{name} {value}")
        split, split_note = _stage_layers(row, model.layers, mesh.pp, vpp)
        ragged = base.global_batch % (microbatch * mesh.dp) != 0
        batch_note = "the last microbatch is smaller than the others" if ragged else ""
        recipe = replace(
            base,
            microbatch=microbatch,
            recompute=recompute,
            vpp=vpp,
            schedule=_schedule(row, mesh.pp, vpp),
            stage_layers=split,
            **messages_of_row(row, profile, vpp),
        )
        yield Candidate(recipe, tuple(chosen), tuple(note for note in (split_note, batch_note) if note))


def _base_recipe(row: PublishedRow, model: "ModelShape", notes: list[str]) -> Recipe:
    """What does not depend on the choices that a row may leave open."""
    from traincast.schedule import SPLIT

    splits = row.text("schedule") in SPLIT
    kernel = row.text("attention")
    if not kernel:
        kernel = "flash" if model.gated_mlp else "unfused"
        notes.append(f"attention kernel not stated: {kernel}")
    scatter_gather, precision = row.flag("scatter_gather"), row.text("precision")
    recipe = Recipe(
        global_batch=row.essential("global_batch"),
        microbatch=1,
        sequence=row.essential("seq"),
        precision=precision,
        sequence_parallel=row.flag("sequence_parallel") or False,
        attention="unfused" if kernel == "unfused" else "flash",
        gradient_dtype="fp16" if precision == "fp16" else "fp32",
        p2p="async" if row.flag("p2p_overlap") or splits else "blocking",
        # the authors of zero bubble: steps roll, unless the optimiser was synchronised (Qi et al. 2023, section 4)
        post_validation=splits and "sync_optimizer" not in (row.text("remark"), row.text("unusual")),
        scatter_gather=True if scatter_gather is None else scatter_gather,
        **fp8_of_row(row),
        **offloading_of_row(row),
        **sharding_of_row(row, notes),
    )
    return replace(recipe, bucket_bytes=default_bucket(recipe))


def _microbatches(row: PublishedRow, global_batch: int, dp: int) -> tuple[int, ...]:
    stated = row.count("microbatch")
    if stated is not None:
        return (stated,)
    per_replica = max(1, global_batch // dp)
    return tuple(size for size in range(1, min(per_replica, _LARGEST_MICROBATCH) + 1) if per_replica % size == 0)


def _chunk_counts(row: PublishedRow, layers: int, pp: int) -> tuple[int, ...]:
    """Chunks a stage: as stated; else 1 without interleaving, and every even split where that may be on.

    Where the first and the last stage have a layer less, embedding and head count as one each.
    """
    from traincast.schedule import ANY_CHUNKS, TWO_CHUNKS

    stated = row.count("vpp")
    if stated is not None:
        return (stated,)
    name = row.text("schedule")
    if pp > 1 and name in TWO_CHUNKS:
        return (2,)
    if pp == 1 or name not in ("", *ANY_CHUNKS):
        return (1,)
    first = 2 if name == "interleaved" else 1
    split = layers + 2 if row.text("stage_layers") == "first-1,last-1" else layers
    return tuple(vpp for vpp in range(first, split // pp + 1) if split % (pp * vpp) == 0) or (first,)


def _recompute_modes(row: PublishedRow) -> tuple[str, ...]:
    stated = row.text("recompute")
    return (stated,) if stated else RECOMPUTE_MODES


def _schedule(row: PublishedRow, pp: int, vpp: int) -> ScheduleName:
    if pp == 1:
        return "none"
    name = row.text("schedule")
    if name in ("", "none", "interleaved", "1f1b"):
        return "interleaved" if vpp > 1 else "1f1b"
    return cast(ScheduleName, name)


def _stage_layers(row: PublishedRow, layers: int, pp: int, vpp: int) -> tuple[tuple[int, ...] | None, str]:
    """Layers of each chunk, None for the even split, and a warning where the split had to be uneven."""
    from traincast.mesh import balanced_layers

    stated = row.text("stage_layers")
    if stated == "first-1,last-1":
        return balanced_layers(layers, pp, vpp, embedding_as_layer=True), ""
    if stated:
        split = _layer_list(stated)
        if len(split) != pp * vpp or sum(split) != layers:
            raise RowSkippedError(f"stage_layers {stated!r} does not place {layers} layers on {pp} x {vpp} chunks")
        return split, ""
    if layers % (pp * vpp) == 0:
        return None, ""
    split = balanced_layers(layers, pp, vpp, embedding_as_layer=True)
    as_layers = (layers + 2) % (pp * vpp) == 0
    if as_layers and row.flag("embedding_as_layer"):
        return split, ""
    how = "embedding and head count as layers" if as_layers else "as even as can be"
    return split, f"{layers} layers do not divide over {pp * vpp} chunks: uneven stages, {how}"


def _layer_list(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise RowSkippedError(f"stage_layers is not understood: {text!r}") from None
