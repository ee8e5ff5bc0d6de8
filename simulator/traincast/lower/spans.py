"""Spans of every group that a rank belongs to, as small integers, so that alike ranks can be found with NumPy."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from traincast.lower.rings import PLAIN, ContextSplit, exchanges
from traincast.mesh import Mesh, SubMesh
from traincast.schedule import chunks_of_model, meets_itself
from traincast.topology import Cluster, Span, family_spans

Ints = npt.NDArray[np.int64]

FAMILIES = (
    *("tp", "dp", "next", "previous", "embedding", "model", "shard", "replica"),
    *("cp", "cp_next", "cp_across", "cp_heads"),
)
"""Columns of `RankSpans.ids`: groups of the tensor-parallel and gradient families, the message to the next and from
the previous stage, first with last stage, all ranks of a replica; where groups smaller than dp shard among
themselves, such a group and the ranks that hold the same share in the others; and of context parallelism rings, their
slowest hop (inside nodes), their slowest hop across nodes, and ranks that exchange heads."""


@dataclass(frozen=True)
class RankSpans:
    """`ids[rank, column]` indexes `table`; -1 where the rank is in no such group of more than one rank."""

    ids: Ints
    table: tuple[Span, ...]
    groups: Mapping[str, Ints]
    """Group arrays (count, size) of mesh ranks per family; messages are (sender, receiver) pairs."""
    folded: dict[Any, Any] = field(default_factory=dict, repr=False)
    """Classes of these ranks and their wiring, by what else tells ranks apart (`build._folded`)."""

    def of(self, rank: int) -> dict[str, Span]:
        """Spans of one rank by family."""
        row = self.ids[rank]
        return {name: self.table[i] for name, i in zip(FAMILIES, row, strict=True) if i >= 0}


def rank_spans(
    mesh: Mesh, cluster: Cluster, schedule: str = "1f1b", shard: int | None = None, context: ContextSplit = PLAIN
) -> RankSpans:
    """Spans of all families of a mesh on a cluster; `schedule` says which stages hold copies of one part.

    `shard` ranks next to each other in a dp x cp group share states among themselves (None: all of it). `context` says
    how context-parallel groups are split.

    All groups of a family run at the same time and share links statically. Messages of one stage boundary run
    together; those of different boundaries do not, so they are taken boundary by boundary. Equal questions get one
    answer, which nobody may write to.
    """
    kind = "1f1b" if not meets_itself(schedule) else "dualpipe" if chunks_of_model(schedule, 2) < 2 else "dualpipev"
    return _rank_spans(mesh, cluster, kind, shard, context)


@lru_cache(maxsize=32)
def _rank_spans(mesh: Mesh, cluster: Cluster, schedule: str, shard: int | None, context: ContextSplit) -> RankSpans:
    ids = np.full((mesh.world, len(FAMILIES)), -1, dtype=np.int64)
    table: dict[Span, int] = {}
    groups: dict[str, Ints] = {
        "tp": mesh.groups("tp"),
        "dp": gradient_groups(mesh, schedule),
        "embedding": np.arange(mesh.world)[:, None] if meets_itself(schedule) else mesh.embedding_groups(),
        "model": mesh.groups("tp", "pp"),
    }
    if shard is not None:
        groups |= shard_groups(groups["dp"], shard)
    for name, members in groups.items():
        if members.shape[1] > 1:
            spans = family_spans(cluster, mesh.physical(members))
            _fill(ids[:, FAMILIES.index(name)], members, spans, table)
    for one in exchanges(mesh, cluster, context) if mesh.cp > 1 else ():
        _fill(ids[:, FAMILIES.index(one.family)], one.owners, one.spans, table)
        groups[one.family] = one.groups
    if mesh.pp > 1:
        groups["next"] = _messages(mesh, cluster, ids, table)
    for shared in (ids, *groups.values()):
        shared.setflags(write=False)
    return RankSpans(ids, tuple(table), groups)


def gradient_groups(mesh: Mesh, schedule: str) -> Ints:
    """Ranks that hold the same weights, (count, size): the dp x cp groups.

    Where the model runs both ways (DualPipe), stage s and stage p - 1 - s hold two copies of the same two parts, which
    see different microbatches: their groups are one.
    """
    members = mesh.groups("dp", "cp")
    if chunks_of_model(schedule, 2) == 2:
        return members
    where = mesh.coordinates()
    stage, tp = where["pp"][members[:, 0]], where["tp"][members[:, 0]]
    order = np.lexsort((tp, stage))
    by_stage = members[order].reshape(mesh.pp, mesh.tp, -1)
    paired = np.concatenate([by_stage, by_stage[::-1]], axis=2)[: mesh.pp // 2]
    return np.asarray(paired.reshape(-1, paired.shape[2]), dtype=np.int64)


def shard_groups(members: Ints, shard: int) -> dict[str, Ints]:
    """Groups of a gradient family (count, size) that shard among themselves, and those across them (HSDP)."""
    pair = SubMesh(("replica", "shard"), ("cp", "dp"), members.reshape(len(members), -1, shard))
    return {dim: pair.groups(dim) for dim in pair.dims}


def _messages(mesh: Mesh, cluster: Cluster, ids: Ints, table: dict[Span, int]) -> Ints:
    """Fill the message columns; the last stage's next is the first (interleaving sends chunk c to c+1 that way)."""
    lines = mesh.groups("pp")
    pairs = []
    for stage in range(mesh.pp):
        pair = np.stack([lines[:, stage], lines[:, (stage + 1) % mesh.pp]], axis=1)
        spans = family_spans(cluster, mesh.physical(pair), pattern="chain")
        _fill(ids[:, FAMILIES.index("next")], pair[:, :1], spans, table)
        ids[pair[:, 1], FAMILIES.index("previous")] = ids[pair[:, 0], FAMILIES.index("next")]
        pairs.append(pair)
    return np.concatenate(pairs)


def _fill(column: Ints, owners: Ints, spans: Sequence[Span], table: dict[Span, int]) -> None:
    """Write the index of each span to the ranks `owners` of the same row."""
    for row, span in zip(owners, longest_paths(spans), strict=True):
        column[row] = table.setdefault(span, len(table))


def longest_paths(spans: Sequence[Span]) -> list[Span]:
    """Give groups of a family that differ only in path length the longest path among them.

    Whether two nodes share a leaf or meet at a spine moves a hop by about a microsecond, less than any constant is
    known to, while every replica waits for the slowest one in the end. Taking the longest keeps bandwidths exact, is an
    upper bound in latency, and leaves as many classes as there are different bandwidths.
    """
    longest: dict[Span, Span] = {}
    keys = {span: replace(span, inter_latency_s=0.0, tier="") for span in set(spans)}
    for span, key in keys.items():
        if key not in longest or span.inter_latency_s > longest[key].inter_latency_s:
            longest[key] = span
    return [longest[keys[span]] for span in spans]
