"""Single cables between leaves, spines and cores, and the ones that a hash picks for a flow (ECMP)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from traincast.errors import TopologyError
from traincast.topology.cluster import Cluster
from traincast.topology.mix import mix

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Cables:
    """Cables by number: of a bundle of k parallel ones each has 1/k of its bandwidth.

    `leaf_low`, `leaf_high` are leaf and spine of each cable, sorted by leaf and then by spine; `spine_low`,
    `spine_high` spine and core of each, sorted by spine. `by_core` lists the latter sorted by core and block,
    `core_key` is core * blocks + block of each of that list. `leaf_block` and `spine_block` give the block of a switch.
    """

    leaf_low: Ints
    leaf_high: Ints
    leaf_bytes_per_s: Floats
    spine_low: Ints
    spine_high: Ints
    spine_bytes_per_s: Floats
    by_core: Ints
    core_key: Ints
    leaf_block: Ints
    spine_block: Ints
    blocks: int
    leaf_keys: tuple[str, ...]
    spine_keys: tuple[str, ...]
    core_keys: tuple[str, ...]

    def name(self, section: str, cable: int) -> str:
        """Both ends of a cable and its number among those of its lower end."""
        if section == "leaf":
            low, high, lows, highs = self.leaf_low, self.leaf_high, self.leaf_keys, self.spine_keys
        else:
            low, high, lows, highs = self.spine_low, self.spine_high, self.spine_keys, self.core_keys
        place = cable - int(np.searchsorted(low, low[cable]))
        return f"{lows[low[cable]]}-{highs[high[cable]]} cable {place}"


def build_cables(cluster: Cluster) -> Cables:
    """The cables of a cluster's fabric, from its graph."""
    graph, fabric = cluster.graph, cluster.fabric
    keys = {kind: tuple(key for key in graph if graph.nodes[key]["kind"] == kind) for kind in ("spine", "core")}
    leaf_low, leaf_high, leaf_rate = _cables(cluster, fabric.leaf_keys, keys["spine"])
    spine_low, spine_high, spine_rate = _cables(cluster, keys["spine"], keys["core"])
    spine_block = np.zeros(len(keys["spine"]), dtype=np.int64)
    spine_block[leaf_high] = fabric.leaf_block[leaf_low]
    blocks = len(fabric.block_up_bytes_per_s)
    core_key = spine_high * blocks + spine_block[spine_low]
    by_core = np.argsort(core_key, kind="stable")
    return Cables(
        leaf_low=leaf_low,
        leaf_high=leaf_high,
        leaf_bytes_per_s=leaf_rate,
        spine_low=spine_low,
        spine_high=spine_high,
        spine_bytes_per_s=spine_rate,
        by_core=by_core,
        core_key=core_key[by_core],
        leaf_block=fabric.leaf_block,
        spine_block=spine_block,
        blocks=blocks,
        leaf_keys=fabric.leaf_keys,
        spine_keys=keys["spine"],
        core_keys=keys["core"],
    )


def _cables(cluster: Cluster, lows: Sequence[str], highs: Sequence[str]) -> tuple[Ints, Ints, Floats]:
    """Lower end, upper end and bandwidth of each cable between two kinds of switches, sorted by both ends."""
    number = {key: index for index, key in enumerate(highs)}
    rows = sorted(
        (low, number[other], int(edge["links"]), float(edge["bandwidth_bytes_per_s"]))
        for low, key in enumerate(lows)
        for other, edge in cluster.graph[key].items()
        if other in number
    )
    copies = np.array([row[2] for row in rows], dtype=np.int64)
    low = np.repeat(np.array([row[0] for row in rows], dtype=np.int64), copies)
    high = np.repeat(np.array([row[1] for row in rows], dtype=np.int64), copies)
    rate = np.repeat(np.array([row[3] for row in rows], dtype=np.float64) / np.maximum(copies, 1), copies)
    return low, high, rate


def climb(cables: Cables, source: Ints, target: Ints, keys: Sequence[Ints], seed: int) -> dict[str, Ints]:
    """Cables of flows from leaf `source` to leaf `target` at each level, -1 where a flow does not get so high.

    `keys` are what is hashed (NICs at both ends, channel). Every switch on the way up picks among all its uplinks
    with a hash of its own level, every switch on the way down among the cables that lead to the target. Where a pick
    leads to no common switch (a cut cable), the next one is tried. Raises TopologyError where none does.
    """
    count = len(source)
    steps = {name: np.full(count, -1, dtype=np.int64) for name in ("leaf up", "leaf down", "block up", "block down")}
    picks = [(mix(keys, seed * 4 + level) >> np.uint64(34)).astype(np.int64) for level in range(4)]
    ways = np.searchsorted(cables.leaf_low, [source, source + 1])
    begin, ports = ways[0], ways[1] - ways[0]
    pending = np.flatnonzero(ports > 0)
    blocked = [np.flatnonzero(ports == 0)]
    turn = 0
    while len(pending):
        up = begin[pending] + (picks[0][pending] + turn) % ports[pending]
        found = _descend(cables, up, target[pending], [pick[pending] + turn for pick in picks])
        good = found["leaf down"] >= 0
        for name, cable in found.items():
            steps[name][pending[good]] = cable[good]
        turn += 1
        pending = pending[~good]
        blocked.append(pending[turn >= ports[pending]])
        pending = pending[turn < ports[pending]]
    lost = np.concatenate(blocked)
    if len(lost):
        first, last = cables.leaf_keys[source[lost[0]]], cables.leaf_keys[target[lost[0]]]
        raise TopologyError(f"{first} and {last} have no switch above them in common", fix="join them by a spine")
    return steps


def _descend(cables: Cables, up: Ints, target: Ints, picks: Sequence[Ints]) -> dict[str, Ints]:
    """The rest of the way once the first cable `up` is chosen; -1 where it does not lead to the target."""
    spine = cables.leaf_high[up]
    higher = cables.spine_block[spine] != cables.leaf_block[target]
    climbing = _choose(cables.spine_low, spine, picks[1])
    climbing[~higher] = -1
    core = cables.spine_high[climbing] if len(cables.spine_high) else np.zeros_like(spine)
    key = np.where(climbing >= 0, core * cables.blocks + cables.leaf_block[target], -1)
    falling = _choose(cables.core_key, key, picks[2])
    falling = np.where(falling >= 0, cables.by_core[falling] if len(cables.by_core) else -1, -1)
    if len(cables.spine_low):
        spine = np.where(falling >= 0, cables.spine_low[falling], spine)
    width = len(cables.spine_keys)
    down = _choose(cables.leaf_low * width + cables.leaf_high, target * width + spine, picks[3])
    down[higher & (falling < 0)] = -1
    return {"leaf up": up, "leaf down": down, "block up": climbing, "block down": falling}


def _choose(ordered: Ints, key: Ints, pick: Ints) -> Ints:
    """A place in `ordered` that holds `key`, the pick-th of them; -1 where there is none."""
    low, high = np.searchsorted(ordered, key), np.searchsorted(ordered, key, side="right")
    return np.where(high > low, low + pick % np.maximum(high - low, 1), -1)
