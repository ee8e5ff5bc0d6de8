"""What a cluster file says is wrong with its cluster, as changes to the graph."""

import re
from typing import Final

from traincast.errors import TopologyError, combined
from traincast.topology.clusterfile import DegradedEntry, DescribedEntry
from traincast.topology.degrade import Change
from traincast.topology.yamltext import Document

_RANGE: Final = re.compile(r"\s*(\d{1,7})\s*(?:-\s*(\d{1,7})\s*)?")
_MOST_NODES: Final = 1_000_000


def changes_of(document: Document, entry: DescribedEntry) -> tuple[Change, ...]:
    """The changes of `degraded`, `dead_gpus` and `absent_nodes`, each with its place in the file.

    Raises one TopologyError for all ranges that are none.
    """
    found = [_change(item, document.where(["degraded", place])) for place, item in enumerate(entry.degraded)]
    found += [
        Change("dead_gpu", gpu, where=document.where(["dead_gpus", place])) for place, gpu in enumerate(entry.dead_gpus)
    ]
    problems = []
    for place, item in enumerate(entry.absent_nodes):
        where = document.where(["absent_nodes", place])
        try:
            found += [Change("absent_node", f"n{node}", where=where) for node in _numbers(item, where)]
        except TopologyError as error:
            problems.append(error)
    if problems:
        raise combined(problems)
    return tuple(found)


def _change(item: DegradedEntry, where: str) -> Change:
    if item.nic is not None:
        return Change("slow_nic", item.nic, rate=item.rate or 0.0, where=where)
    if item.gpu is not None:
        return Change("slow_gpu", item.gpu, rate=item.speed or 0.0, where=where)
    if item.link is not None:
        return Change("slow_link", item.link[0], item.link[1], rate=item.rate or 0.0, where=where)
    if item.missing_cable is not None:
        return Change("missing_cable", item.missing_cable[0], item.missing_cable[1], where=where)
    return Change("cut_uplinks", item.leaf or item.spine or "", count=item.uplinks_cut or 0, where=where)


def _numbers(item: int | str, where: str) -> range:
    found = _RANGE.fullmatch(str(item))
    first, last = (int(found[1]), int(found[2] or found[1])) if found else (0, -1)
    if not first <= last < _MOST_NODES:
        raise TopologyError(f"{item!r} is no node and no range", where=where, fix="write 3 or 9-11")
    return range(first, last + 1)
