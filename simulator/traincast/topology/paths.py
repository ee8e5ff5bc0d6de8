"""Paths inside one node or rack, read off the tree that its parts hang on."""

import networkx as nx


def inside(graph: "nx.Graph[str]", a: str, b: str) -> tuple[str, ...]:
    """The path between two GPUs of one node or rack: over NVLink, else up the PCIe tree and down."""
    if graph.has_edge(a, b):
        return (a, b)
    switch = _near(graph, a, "nvswitch")
    if switch and switch == _near(graph, b, "nvswitch"):
        return (a, switch, b)
    return up_and_down(graph, a, b)


def up_and_down(graph: "nx.Graph[str]", a: str, b: str) -> tuple[str, ...]:
    """The path between two parts of one node over PCIe switches and sockets.

    Two switches may be joined directly (PXB in nvidia-smi's terms); the way over the CPU is longer then.
    """
    up, down = _upwards(graph, a), _upwards(graph, b)
    if len(up) > 1 and len(down) > 1 and graph.has_edge(up[1], down[1]):
        return (a, up[1], down[1], b)
    meeting = next((key for key in up if key in down), None)
    if meeting is None:
        return (*up, *reversed(down))
    return (*up[: up.index(meeting) + 1], *reversed(down[: down.index(meeting)]))


def _upwards(graph: "nx.Graph[str]", key: str) -> tuple[str, ...]:
    """A GPU or NIC, its PCIe switch if there is one, and its socket."""
    path = [key]
    for kind in ("pcie", "cpu"):
        above = _near(graph, path[-1], kind)
        if above:
            path.append(above)
    return tuple(path)


def _near(graph: "nx.Graph[str]", key: str, kind: str) -> str:
    return next((other for other in graph[key] if graph.nodes[other]["kind"] == kind), "")
