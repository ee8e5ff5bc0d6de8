"""Which NICs are near which GPU, read off the PCIe tree.

GPUs and NICs under one PCIe switch belong together: they are dealt out in order, so that GPU i of a DGX A100
has NIC i, two GPUs share a NIC where there are four, and a GPU has two where there are sixteen. A GPU whose
switch has no NIC takes one of its socket, else of its node, the least taken first; a NIC that no GPU took
goes to the GPU with the fewest.
"""

from collections.abc import Iterable, Sequence

import networkx as nx


def nearest_nics(graph: "nx.Graph[str]", gpus: Sequence[str], nics: Sequence[str]) -> dict[str, list[int]]:
    """GPU key -> numbers (places in `nics`) of the NICs near it; empty where its node has none."""
    number = {key: place for place, key in enumerate(nics)}
    of_node: dict[int, tuple[list[str], list[str]]] = {}
    for side, keys in enumerate((gpus, nics)):
        for key in keys:
            of_node.setdefault(graph.nodes[key]["node"], ([], []))[side].append(key)
    found: dict[str, list[int]] = {}
    for node_gpus, node_nics in of_node.values():
        near = _of_node(graph, node_gpus, node_nics)
        found |= {gpu: sorted(number[nic] for nic in near[gpu]) for gpu in node_gpus}
    return found


def deal(gpus: Sequence[str], nics: Sequence[str]) -> dict[str, list[str]]:
    """NICs dealt to GPUs in order: shares of equal size, and neighbours share where NICs are fewer."""
    g, n = len(gpus), len(nics)
    if n < g:
        return {gpu: [nics[i * n // g]] for i, gpu in enumerate(gpus)}
    return {gpu: list(nics[i * n // g : (i + 1) * n // g]) for i, gpu in enumerate(gpus)}


def _of_node(graph: "nx.Graph[str]", gpus: Sequence[str], nics: Sequence[str]) -> dict[str, list[str]]:
    if not nics:
        return {gpu: [] for gpu in gpus}
    hosts = {key: _host(graph, key) for key in (*gpus, *nics)}
    near: dict[str, list[str]] = {}
    for host in dict.fromkeys(hosts[gpu] for gpu in gpus):
        local = [nic for nic in nics if hosts[nic] == host]
        if local:
            near |= deal([gpu for gpu in gpus if hosts[gpu] == host], local)
    taken = {nic: sum(nic in own for own in near.values()) for nic in nics}
    sockets = {key: _socket(graph, host) for key, host in hosts.items()}
    for gpu in gpus:
        if gpu not in near:
            nic = min(_same(sockets, gpu, nics), key=lambda nic: taken[nic])
            near[gpu] = [nic]
            taken[nic] += 1
    for nic in nics:
        if not taken[nic]:
            near[min(_same(sockets, nic, gpus), key=lambda gpu: len(near[gpu]))].append(nic)
    return near


def _same(sockets: dict[str, str], key: str, others: Iterable[str]) -> list[str]:
    """The others on the socket of `key`; all of them where there is none."""
    others = list(others)
    return [other for other in others if sockets[other] == sockets[key]] or others


def _host(graph: "nx.Graph[str]", key: str) -> str:
    """The PCIe switch or socket that a GPU or NIC hangs on."""
    return next((other for other in graph[key] if graph.nodes[other]["kind"] in ("pcie", "cpu")), "")


def _socket(graph: "nx.Graph[str]", host: str) -> str:
    if not host or graph.nodes[host]["kind"] == "cpu":
        return host
    return next((other for other in graph[host] if graph.nodes[other]["kind"] == "cpu"), "")
