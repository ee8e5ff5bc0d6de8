"""Over which groups of ranks the microbenchmark suite measured a collective, from the mesh that its run names."""

import re
from functools import lru_cache
from typing import Final

from traincast.calibration.records import Record, RunInfo
from traincast.errors import UserError
from traincast.mesh import FAMILIES, ShapeRequest, build_mesh, family_groups

SUITE: Final = "traincast suite"
_MESH: Final = re.compile(r"tp(\d+) cp(\d+) ep(\d+) dp(\d+) pp(\d+) etp(\d+) order ([a-z-]+)")
"""`calibration/suite/groups.py`, Shape.text."""

_MOST_WORLD: Final = 2**17

Groups = tuple[tuple[int, ...], ...]


def node_gpus(run: RunInfo) -> int | None:
    """GPUs of a node that take part in a run: its ranks over its nodes; None where that is not told or not even."""
    if not run.world or not run.nodes or run.world % run.nodes:
        return None
    return run.world // run.nodes


def groups_at_once(record: Record) -> Groups | None:
    """All groups that ran at once, as ranks; None where that is not told, or ranks do not fill node after node.

    Of a ping-pong only the two ends of a group talk.
    """
    run, params = record.run, dict(record.params)
    each = node_gpus(run)
    if each is None or not (run.tool or "").startswith(SUITE) or not run.world or run.world > _MOST_WORLD:
        return None
    found = _family(str(params.get("family", "")), run.mesh or "", run.world)
    if found is None:
        return None
    if params.get("mode") == "alone":
        found = found[:1]
    if params.get("pattern") == "pingpong":
        found = tuple((group[0], group[-1]) for group in found)
    nodes = max(len({rank // each for rank in group}) for group in found)
    told = {(len(group), record.nodes or nodes) for group in found} == {(record.ranks, nodes)}
    return found if told and params.get("groups", len(found)) == len(found) else None


@lru_cache(maxsize=64)
def _family(name: str, mesh: str, world: int) -> Groups | None:
    """All groups of a family of a mesh; None for what is no family, or no mesh of this world."""
    if name == "world":
        return (tuple(range(world)),)
    shape = _MESH.fullmatch(mesh)
    if shape is None or name not in FAMILIES:
        return None
    tp, cp, ep, dp, pp, etp = (int(size) for size in shape.groups()[:6])
    try:
        built = build_mesh(ShapeRequest(tp, cp, pp, dp, ep, etp, order=shape.group(7), world=world))
        return tuple(tuple(group) for group in family_groups(built, name).tolist())
    except UserError:
        return None
