"""What a rank holds: the layers of its stage, and its share of each weight."""

from dataclasses import dataclass
from typing import Literal

from traincast.errors import ShapeError
from traincast.mesh.grid import Ints
from traincast.mesh.layers import stage_ranges
from traincast.mesh.mesh import Mesh

Split = Literal["columns", "rows", "vocabulary", "experts", "whole"]
Stages = Literal["every", "first", "last"]


@dataclass(frozen=True)
class ModelFacts:
    """What the shares depend on, as far as it is known.

    `split` gives layers per chunk in pipeline order (length pp*vpp), `parts` which of them each stage holds where that
    is not one in pp. Sizes that are None leave the local shapes open; `experts` 0 is a dense model.
    """

    split: tuple[int, ...] | None = None
    parts: tuple[tuple[int, ...], ...] | None = None
    hidden: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    ffn_hidden: int | None = None
    vocab: int | None = None
    experts: int = 0
    gated_mlp: bool = False


@dataclass(frozen=True)
class WeightShare:
    """One weight matrix (or vector) of a layer or of an end of the pipeline.

    It is cut in `parts` along mesh axis `axis` ("" where every rank holds the whole); `full` and `local` are
    its shapes (inputs, outputs), where known.
    """

    name: str
    stages: Stages
    split: Split
    axis: str
    parts: int
    full: tuple[int, ...] | None = None
    local: tuple[int, ...] | None = None

    @property
    def share(self) -> str:
        """The share of one rank: "1/8", or "whole"."""
        return "whole" if self.parts == 1 else f"1/{self.parts}"


def weight_shares(mesh: Mesh, model: ModelFacts) -> tuple[WeightShare, ...]:
    """Every kind of weight and how the mesh cuts it (Megatron's column, row and vocabulary split).

    Query, key, value and up-projections are split by columns, the projections back by rows, the embedding
    and the head by vocabulary; norms and routers are whole on every tensor-parallel rank. Key and value
    heads that are fewer than tp ranks are cut into one part a head, and each part is held by several ranks.
    """
    h, ffn, heads = model.hidden, model.ffn_hidden, model.heads
    width = model.head_dim or (h // heads if h and heads else None)
    kv_heads = model.kv_heads or heads
    out = heads * width if heads and width else h
    gate = 2 if model.gated_mlp else 1
    kv_parts = min(mesh.tp, kv_heads) if kv_heads else mesh.tp
    kv_width = kv_heads * width if kv_heads and width else h
    shares = [
        _share("embedding", "first", "vocabulary", ("tp", mesh.tp), (model.vocab, h)),
        _share("norms", "every", "whole", ("", 1), (h,)),
        _share("attention query", "every", "columns", ("tp", mesh.tp), (h, out)),
        _share("attention key", "every", "columns", ("tp", kv_parts), (h, kv_width)),
        _share("attention value", "every", "columns", ("tp", kv_parts), (h, kv_width)),
        _share("attention projection", "every", "rows", ("tp", mesh.tp), (out, h)),
    ]
    up, down = (h, ffn * gate if ffn else None), (ffn, h)
    if model.experts:
        shares += [
            _share("router", "every", "whole", ("", 1), (h, model.experts)),
            _share("experts", "every", "experts", ("ep", mesh.ep), (model.experts,)),
            _share("expert mlp up", "every", "columns", ("etp", mesh.etp), up),
            _share("expert mlp down", "every", "rows", ("etp", mesh.etp), down),
        ]
    else:
        shares += [
            _share("mlp up", "every", "columns", ("tp", mesh.tp), up),
            _share("mlp down", "every", "rows", ("tp", mesh.tp), down),
        ]
    shares += [
        _share("final norm", "last", "whole", ("", 1), (h,)),
        _share("head", "last", "vocabulary", ("tp", mesh.tp), (model.vocab, h)),
    ]
    return tuple(shares)


def _share(name: str, stages: Stages, split: Split, cut: tuple[str, int], full: tuple[int | None, ...]) -> WeightShare:
    axis, parts = cut if cut[1] > 1 else ("", 1)
    known = tuple(size for size in full if size is not None)
    if len(known) < len(full):
        return WeightShare(name, stages, split, axis, parts)
    along = 1 if split == "columns" else 0
    local = tuple(-(-size // parts) if index == along else size for index, size in enumerate(known))
    return WeightShare(name, stages, split, axis, parts, known, local)


@dataclass(frozen=True)
class Holding:
    """One rank's part of the model. `parts` is weight name -> (which part, of how many)."""

    stage: int
    chunks: tuple[tuple[int, int], ...] | None
    parts: dict[str, tuple[int, int]]


def holdings(mesh: Mesh, model: ModelFacts) -> tuple[Holding, ...]:
    """What each rank holds, by rank. Raises ShapeError where the split is not one entry a chunk."""
    chunks = None if model.split is None else _chunks(mesh, model.split, model.parts)
    shares = weight_shares(mesh, model)
    dense = mesh.coordinates()
    coordinates = {**dense, **(mesh.expert_coordinates() if model.experts else {})}
    parts = {weight.name: _part_numbers(weight, coordinates, mesh) for weight in shares}
    ends = end_stages(mesh, model.parts)
    held = []
    for rank, stage in enumerate(dense["pp"].tolist()):
        mine = {
            weight.name: (parts[weight.name][rank], weight.parts)
            for weight in shares
            if stage in ends.get(weight.stages, (stage,))
        }
        held.append(Holding(stage, None if chunks is None else chunks[stage], mine))
    return tuple(held)


def end_stages(mesh: Mesh, parts: tuple[tuple[int, ...], ...] | None) -> dict[Stages, tuple[int, ...]]:
    """Stages that hold the first and the last part of the model: both on stage 0 where it is folded in a V, on either
    end where there are two copies in opposite directions."""
    if parts is None:
        return {"first": (0,), "last": (mesh.pp - 1,)}
    last = max(max(held) for held in parts)
    on = {part: tuple(stage for stage, held in enumerate(parts) if part in held) for part in (0, last)}
    return {"first": on[0], "last": on[last]}


def _part_numbers(weight: WeightShare, coordinates: dict[str, Ints], mesh: Mesh) -> list[int]:
    """The part of the weight on each rank; with fewer parts than ranks, neighbours hold the same part."""
    if not weight.axis:
        return [0] * mesh.world
    held: list[int] = (coordinates[weight.axis] * weight.parts // mesh.size(weight.axis)).tolist()
    return held


def _chunks(
    mesh: Mesh, split: tuple[int, ...], parts: tuple[tuple[int, ...], ...] | None
) -> tuple[tuple[tuple[int, int], ...], ...]:
    if len(split) % mesh.pp:
        raise ShapeError(
            f"a split in {len(split)} chunks does not lie on pp {mesh.pp} stages",
            fix="the same chunks a stage",
        )
    return stage_ranges(split, mesh.pp, parts)
