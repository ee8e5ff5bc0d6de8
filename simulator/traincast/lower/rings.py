"""Groups inside a context-parallel group: ranks that exchange heads, rings that pass blocks on, and their hops."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from traincast.mesh import Mesh
from traincast.model.context import ACROSS, HEADS, NEXT
from traincast.recipe import Recipe
from traincast.topology import Cluster, Span, family_spans

Ints = npt.NDArray[np.int64]

RINGS = "cp"
"""Family of the ranks that hold different blocks of the same heads: a ring, or what gathers keys and values."""

CONTEXT_FAMILIES = (RINGS, NEXT, ACROSS, HEADS)
"""Families of the exchanges inside a pass."""


@dataclass(frozen=True)
class ContextSplit:
    """`ulysses` ranks exchange heads, next to each other (`heads_inside`) or a ring apart.

    `by_node`: blocks go round inside each node, and from node to node once a turn.
    """

    ulysses: int = 1
    heads_inside: bool = True
    by_node: bool = False


PLAIN = ContextSplit()
"""One ring over all ranks of a group."""


def split_of(mesh: Mesh, recipe: Recipe) -> ContextSplit:
    """How the context-parallel groups of a job are split."""
    return ContextSplit(recipe.ulysses(mesh.cp), recipe.cp_inner == "ulysses", recipe.cp_kind == "burst")


def head_groups(mesh: Mesh, split: ContextSplit) -> Ints:
    """Ranks that exchange heads, (count, ulysses)."""
    return _table(mesh, split).reshape(-1, split.ulysses)


def ring_groups(mesh: Mesh, split: ContextSplit) -> Ints:
    """Ranks of each ring in order, (count, cp / ulysses)."""
    table = _table(mesh, split)
    return np.ascontiguousarray(table.swapaxes(1, 2)).reshape(-1, mesh.cp // split.ulysses)


def _table(mesh: Mesh, split: ContextSplit) -> Ints:
    """Ranks by (group, place in its ring, place among those that exchange heads)."""
    groups, ring = mesh.groups("cp"), mesh.cp // split.ulysses
    if split.heads_inside:
        return np.ascontiguousarray(groups.reshape(-1, ring, split.ulysses))
    return np.ascontiguousarray(groups.reshape(-1, split.ulysses, ring).swapaxes(1, 2))


@lru_cache(maxsize=64)
def ring_turn(mesh: Mesh, cluster: Cluster, split: ContextSplit) -> int:
    """Ranks that a ring has in each of its nodes, where blocks go round inside nodes and once a turn across them.

    0 where one ring goes all the way: it was not asked for otherwise, or it lies in one node, or has one rank in each,
    or not equally many.
    """
    rings = ring_groups(mesh, split)
    size = rings.shape[1]
    if not split.by_node or size == 1:
        return 0
    nodes = cluster.node_index[mesh.physical(rings)]
    for turn in (turn for turn in range(size, 1, -1) if size % turn == 0):
        turns = nodes.reshape(len(nodes), -1, turn)
        if (turns == turns[:, :, :1]).all():
            return turn if turn < size else 0
    return 0


@dataclass(frozen=True, eq=False)
class Exchange:
    """One family of groups (count, size); `spans` go with the rows of `owners`, ranks that pay the same."""

    family: str
    groups: Ints
    owners: Ints
    spans: tuple[Span, ...]


def exchanges(mesh: Mesh, cluster: Cluster, split: ContextSplit) -> Iterator[Exchange]:
    """Everything that context-parallel ranks exchange.

    A ring moves in step: a hop of it costs what its slowest hop costs, with all rings under way at once.
    """
    heads, rings = head_groups(mesh, split), ring_groups(mesh, split)
    if heads.shape[1] > 1:
        yield Exchange(HEADS, heads, heads, family_spans(cluster, mesh.physical(heads)))
    size = rings.shape[1]
    if size == 1:
        return
    yield Exchange(RINGS, rings, rings, family_spans(cluster, mesh.physical(rings)))
    turn = ring_turn(mesh, cluster, split) or size
    turns = rings.reshape(len(rings), -1, turn)
    inside = _slowest(mesh, cluster, turns, np.roll(turns, -1, axis=2))
    yield Exchange(NEXT, turns.reshape(-1, turn), rings, inside)
    if turn < size:
        across = _slowest(mesh, cluster, turns, np.roll(turns, -1, axis=1))
        yield Exchange(ACROSS, turns.swapaxes(1, 2).reshape(-1, size // turn), rings, across)


def _slowest(mesh: Mesh, cluster: Cluster, senders: Ints, receivers: Ints) -> tuple[Span, ...]:
    """The slowest of the messages of each group; all messages of all groups run at once."""
    pairs = np.stack([senders, receivers], axis=-1).reshape(-1, 2)
    spans = family_spans(cluster, mesh.physical(pairs), pattern="chain")
    each = len(spans) // len(senders)
    return tuple(max(spans[first : first + each], key=_slowness) for first in range(0, len(spans), each))


def _slowness(span: Span) -> tuple[float, float]:
    """Seconds a byte, then latency."""
    if span.nodes > 1:
        return 1.0 / min(span.inter_bytes_per_s, span.nic_bytes_per_s), span.inter_latency_s
    return 1.0 / span.intra_bytes_per_s, span.intra_latency_s
