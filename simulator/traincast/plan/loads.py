"""What a step puts on the links of the cluster: bytes by family and kind of link, and the busiest links."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from traincast.lower import Job
from traincast.lower.classes import CostBooks
from traincast.lower.rings import CONTEXT_FAMILIES, split_of
from traincast.lower.seats import take_seats
from traincast.lower.sharded import sharding_of
from traincast.lower.spans import RankSpans, rank_spans
from traincast.lower.stages import chunk_parts
from traincast.lower.traffic import stage_traffic
from traincast.model.context import HEADS
from traincast.topology.loads import KINDS, FamilyTraffic, LinkLoads, link_loads

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

AXIS_FAMILIES: Final[Mapping[str, tuple[str, ...]]] = {
    "dp": ("dp", "embedding", "shard", "replica"),
    "cp": CONTEXT_FAMILIES,
}
"""Families whose waiting a forecast counts to an axis of another name than theirs alone."""


@dataclass(frozen=True)
class LinkGroup:
    """Alike links: the name of the first, how many they are, and what each carries in a step.

    `seconds` is the least time in which one of them can do so, bytes over raw capacity.
    """

    name: str
    kind: str
    links: int
    bytes: float
    by_family: Mapping[str, float]
    bytes_per_s: float
    seconds: float


@dataclass(frozen=True)
class KindLoad:
    """All links of one kind, one direction: how many carry anything, bytes of all of them, the busiest one's time."""

    kind: str
    links: int
    bytes: float
    by_family: Mapping[str, float]
    seconds: float


def job_loads(job: Job, spans: RankSpans | None = None) -> LinkLoads:
    """Bytes that one step of a job puts on each link of its cluster, by family of groups."""
    return link_loads(job.cluster, family_traffic(job, spans or spans_of(job)))


def spans_of(job: Job) -> RankSpans:
    """Spans of the groups that a job's schedule, sharding and context parallelism make, as it is lowered."""
    how = sharding_of(job)
    shard = how.shards if how.replicas > 1 < how.shards else None
    return rank_spans(job.mesh, job.cluster, job.recipe.schedule, shard, split_of(job.mesh, job.recipe))


def family_traffic(job: Job, spans: RankSpans) -> tuple[FamilyTraffic, ...]:
    """What the groups of each family send in a step; `pp` has the messages of both directions.

    Bytes go by stage: they depend on nothing that tells the ranks of a stage apart. The all-reduce of tied embeddings
    is there (`embedding`). Collectives go round their groups as rings; exchanges of heads go from every rank to each
    other one (NCCL sends and receives, `costs.collectives.exchange`).
    """
    books = CostBooks(job, chunk_parts(job), take_seats(job, spans))
    totals: dict[str, Floats] = {}
    for stage, rank in enumerate(job.mesh.groups("pp")[0].tolist()):
        for sent in stage_traffic(books.at(rank), stage, spans.of(rank)):
            totals.setdefault(sent.family, np.zeros(job.mesh.pp))[stage] += sent.bytes_sent
    stage_of = job.mesh.coordinates()["pp"]
    found = []
    for name in spans.groups:
        if name in totals and name != "next":
            groups = spans.groups[name]
            sent_bytes = totals[name][stage_of[groups[:, 0]]]
            ring = FamilyTraffic(name, job.mesh.physical(groups), sent_bytes)
            found.append(_exchange(ring) if name == HEADS else ring)
    messages = _messages(job, spans, totals)
    return (*found, messages) if messages is not None else tuple(found)


def _exchange(ring: FamilyTraffic) -> FamilyTraffic:
    """The same bytes as messages between all pairs of a group: a rank of n sends each other one 1 / (n - 1) of them."""
    size = ring.groups.shape[1]
    sender, receiver = np.nonzero(~np.eye(size, dtype=np.bool_))
    pairs = np.stack([ring.groups[:, sender], ring.groups[:, receiver]], axis=-1).reshape(-1, 2)
    return FamilyTraffic(ring.name, pairs, np.repeat(ring.group_bytes / (size - 1), len(sender)), ring=False)


def _messages(job: Job, spans: RankSpans, totals: Mapping[str, Floats]) -> FamilyTraffic | None:
    if "next" not in spans.groups:
        return None
    pairs = spans.groups["next"]
    stage_of = job.mesh.coordinates()["pp"]
    none = np.zeros(job.mesh.pp)
    onward = totals.get("next", none)[stage_of[pairs[:, 0]]]
    back = totals.get("previous", none)[stage_of[pairs[:, 1]]]
    both, sent = np.concatenate([pairs, pairs[:, ::-1]]), np.concatenate([onward, back])
    if job.chunks == 1:  # the last stage sends nothing to the first
        last = np.isin(np.arange(len(both)) % len(pairs), np.flatnonzero(stage_of[pairs[:, 0]] == job.mesh.pp - 1))
        both, sent = both[~last], sent[~last]
    return FamilyTraffic("pp", job.mesh.physical(both), sent, ring=False) if len(both) else None


def busiest(loads: LinkLoads, top: int, families: Sequence[str] = ()) -> tuple[LinkGroup, ...]:
    """The links that need longest, alike ones together. With `families` only what these put on links counts."""
    rows = [row for row, name in enumerate(loads.families) if not families or name in families]
    carried = loads.bytes[rows]
    total = carried.sum(axis=0)
    used = np.flatnonzero(total > 0.0)
    if not len(used):
        return ()
    seconds = total[used] / loads.bytes_per_s[used]
    kinds = loads.kinds()[used]
    # links whose loads differ by rounding only are alike
    columns = [kinds.astype(np.float64), _rounded(loads.bytes_per_s[used]), *(_rounded(row[used]) for row in carried)]
    _, first, count = np.unique(np.stack(columns, axis=1), axis=0, return_index=True, return_counts=True)
    order = sorted(range(len(first)), key=lambda one: (-_rounded(seconds[first[one] : first[one] + 1])[0], first[one]))
    names = [loads.families[row] for row in rows]
    found = []
    for one in order[:top]:
        link = int(used[first[one]])
        by_family = {name: float(load) for name, load in zip(names, carried[:, link], strict=True) if load > 0.0}
        found.append(
            LinkGroup(
                name=loads.name(link),
                kind=KINDS[loads.kind(link)],
                links=int(count[one]),
                bytes=float(total[link]),
                by_family=by_family,
                bytes_per_s=float(loads.bytes_per_s[link]),
                seconds=float(seconds[first[one]]),
            )
        )
    return tuple(found)


def _rounded(values: Floats) -> Floats:
    """To nine significant digits."""
    safe = np.where(values > 0.0, values, 1.0)
    scale = 10.0 ** (8 - np.floor(np.log10(safe)))
    return np.asarray(np.where(values > 0.0, np.round(safe * scale) / scale, 0.0), dtype=np.float64)


def by_kind(loads: LinkLoads) -> tuple[KindLoad, ...]:
    """Bytes of a step on each kind of link, from the GPU upwards; kinds that carry nothing are left out."""
    kinds, seconds = loads.kinds(), loads.seconds
    found = []
    for number, text in enumerate(KINDS.values()):
        own = kinds == number
        used = own & (seconds > 0.0)
        if not used.any():
            continue
        sums = loads.bytes[:, used].sum(axis=1).tolist()
        by_family = {name: load for name, load in zip(loads.families, sums, strict=True) if load > 0.0}
        found.append(KindLoad(text, int(used.sum()), sum(sums), by_family, float(seconds[used].max())))
    return tuple(found)
