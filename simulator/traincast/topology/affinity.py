"""Which NICs are near which GPU, read off the PCIe tree.

GPUs and NICs under one PCIe switch belong together: they are dealt out in order, so that GPU i of a DGX A100
has NIC i, two GPUs share a NIC where there are four, and a GPU has two where there are sixteen. A GPU whose
switch has no NIC takes one of its socket, else of its node, the least taken first; a NIC that no GPU took
goes to the GPU with the fewest. A NIC without a cable counts only where its node has none with one. Nodes of
equal build are worked out once.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Data = Mapping[str, Mapping[str, Any]]
"""Attributes of each vertex."""
Near = Mapping[str, Mapping[str, Mapping[str, Any]]]
"""Neighbours of each vertex, with the edges to them."""
Shares = tuple[tuple[int, ...], ...]


def nearest_nics(data: Data, near: Near, gpus: Sequence[str], nics: Sequence[str]) -> Ints:
    """Numbers (places in `nics`) of the NICs near each GPU, ascending, shape (GPUs, most), filled up with -1."""
    of_node: dict[int, tuple[list[int], list[int]]] = {}
    for side, keys in enumerate((gpus, nics)):
        for place, key in enumerate(keys):
            of_node.setdefault(data[key]["node"], ([], []))[side].append(place)
    rows: list[Sequence[int]] = [()] * len(gpus)
    for own_gpus, own_nics in of_node.values():
        cabled = [nic for nic in own_nics if _is_cabled(data, near[nics[nic]])]
        numbers = cabled or own_nics
        keys = [*(gpus[gpu] for gpu in own_gpus), *(nics[nic] for nic in numbers)]
        shares = _of_node(*_pattern(data, near, keys, len(own_gpus)))
        for gpu, share in zip(own_gpus, shares, strict=True):
            rows[gpu] = [numbers[nic] for nic in share]
    return padded(rows)


def padded(rows: Sequence[Sequence[int]]) -> Ints:
    """Rows of unequal length as one array, filled up with -1."""
    width = max((len(row) for row in rows), default=0)
    filled = [[*row, *[-1] * (width - len(row))] for row in rows]
    return np.array(filled, dtype=np.int64).reshape(len(rows), width)


def deal(gpus: Sequence[int], nics: Sequence[int]) -> dict[int, list[int]]:
    """NICs dealt to GPUs in order: shares of equal size, and neighbours share where NICs are fewer."""
    g, n = len(gpus), len(nics)
    if n < g:
        return {gpu: [nics[i * n // g]] for i, gpu in enumerate(gpus)}
    return {gpu: list(nics[i * n // g : (i + 1) * n // g]) for i, gpu in enumerate(gpus)}


def _is_cabled(data: Data, around: Mapping[str, Mapping[str, Any]]) -> bool:
    return any(data[other]["kind"] == "leaf" for other in around)


def _pattern(
    data: Data, near: Near, keys: Sequence[str], gpus: int
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Numbers of the hosts of a node's GPUs and NICs, and the socket of each host; alike for alike nodes."""
    hosts: dict[str, int] = {}
    on = [hosts.setdefault(_above(data, near, key), len(hosts)) for key in keys]
    sockets: dict[str, int] = {}
    of_host = tuple(sockets.setdefault(_socket(data, near, host), len(sockets)) for host in hosts)
    return tuple(on[:gpus]), tuple(on[gpus:]), of_host


@lru_cache(maxsize=1024)
def _of_node(gpu_hosts: tuple[int, ...], nic_hosts: tuple[int, ...], sockets: tuple[int, ...]) -> Shares:
    """NICs (places in `nic_hosts`) of each GPU of a node; empty where the node has none."""
    gpus, nics = range(len(gpu_hosts)), range(len(nic_hosts))
    if not nics:
        return tuple(() for _ in gpus)
    share: dict[int, list[int]] = {}
    for host in dict.fromkeys(gpu_hosts):
        local = [nic for nic in nics if nic_hosts[nic] == host]
        if local:
            share |= deal([gpu for gpu in gpus if gpu_hosts[gpu] == host], local)
    taken = {nic: sum(nic in own for own in share.values()) for nic in nics}
    for gpu in gpus:
        if gpu not in share:
            home = sockets[gpu_hosts[gpu]]
            nic = min(_some(nics, lambda n: sockets[nic_hosts[n]], home), key=lambda n: taken[n])
            share[gpu] = [nic]
            taken[nic] += 1
    for nic in nics:
        if not taken[nic]:
            home = sockets[nic_hosts[nic]]
            fewest = min(_some(gpus, lambda g: sockets[gpu_hosts[g]], home), key=lambda g: len(share[g]))
            share[fewest].append(nic)
    return tuple(tuple(sorted(share[gpu])) for gpu in gpus)


def _some(parts: Iterable[int], socket_of: Callable[[int], int], home: int) -> list[int]:
    """The parts on the socket `home`; all of them where there is none."""
    parts = list(parts)
    return [part for part in parts if socket_of(part) == home] or parts


def _above(data: Data, near: Near, key: str) -> str:
    """The PCIe switch or socket that a GPU or NIC hangs on."""
    for other in near[key]:
        if data[other]["kind"] in ("pcie", "cpu"):
            return other
    return ""


def _socket(data: Data, near: Near, host: str) -> str:
    if not host or data[host]["kind"] == "cpu":
        return host
    return next((other for other in near[host] if data[other]["kind"] == "cpu"), "")
