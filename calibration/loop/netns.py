"""Hosts of a small cluster on one machine: network namespaces on a bridge, every port at a set rate.

Needs root and iproute2. A port sends through a token bucket (tc tbf) at both ends of its cable, so that a host can
neither send nor receive faster than the rate. The bucket's burst must be 2 ms of the rate or more: a smaller one lets
a late timer of the kernel cost bandwidth.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

BURST_S = 2e-3
_LATENCY = "200ms"
"""Longest that a packet may wait in a bucket before it is dropped."""


class LoopUnavailable(Exception):  # noqa: N818 - it is no fault: the loop is left out and says why
    """Namespaces or shaped links cannot be had here; the text says why."""


@dataclass(frozen=True)
class Host:
    """One host: its namespace and its address on the bridge."""

    namespace: str
    address: str

    def command(self, *words: str) -> list[str]:
        """A command that runs on this host."""
        return ["ip", "netns", "exec", self.namespace, *words]


def burst_bytes(bits_per_s: float) -> int:
    """The bucket of a port: 2 ms of its rate, at least one segment as large as the kernel makes them."""
    return max(64 * 1024, round(bits_per_s / 8 * BURST_S))


@contextmanager
def hosts(count: int, bits_per_s: float) -> Iterator[tuple[Host, ...]]:
    """Hosts that reach each other at `bits_per_s` a port and direction; gone afterwards, whatever happens.

    Raises LoopUnavailable where this machine does not permit them.
    """
    for tool in ("ip", "tc"):
        if shutil.which(tool) is None:
            raise LoopUnavailable(f"no command {tool}: install iproute2")
    if os.geteuid() != 0:
        raise LoopUnavailable("network namespaces need root")
    prefix = f"loop{os.getpid()}"
    bridge = f"{prefix}b"
    made = tuple(Host(f"{prefix}h{number}", f"10.231.7.{number + 1}") for number in range(count))
    try:
        _build(bridge, made, bits_per_s)
        yield made
    finally:
        for name in (bridge, *(host.namespace for host in made)):
            with suppress(LoopUnavailable):
                _call("ip", "netns", "del", name)


def _build(bridge: str, made: tuple[Host, ...], bits_per_s: float) -> None:
    _call("ip", "netns", "add", bridge)
    _call("ip", "-n", bridge, "link", "add", "br0", "type", "bridge")
    _call("ip", "-n", bridge, "link", "set", "br0", "up")
    for number, host in enumerate(made):
        port = f"port{number}"
        _call("ip", "netns", "add", host.namespace)
        cable = ("type", "veth", "peer", "name", port, "netns", bridge)
        _call("ip", "-n", host.namespace, "link", "add", "eth0", *cable)
        _call("ip", "-n", host.namespace, "addr", "add", f"{host.address}/24", "dev", "eth0")
        for name in ("lo", "eth0"):
            _call("ip", "-n", host.namespace, "link", "set", name, "up")
        _call("ip", "-n", bridge, "link", "set", port, "master", "br0")
        _call("ip", "-n", bridge, "link", "set", port, "up")
        for namespace, device in ((host.namespace, "eth0"), (bridge, port)):
            _shape(namespace, device, bits_per_s)


def _shape(namespace: str, device: str, bits_per_s: float) -> None:
    rate, burst = f"{bits_per_s:.0f}bit", f"{burst_bytes(bits_per_s)}b"
    bucket = ("root", "tbf", "rate", rate, "burst", burst, "latency", _LATENCY)
    _call("tc", "-n", namespace, "qdisc", "add", "dev", device, *bucket)


def _call(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        words = (done.stderr.strip() or done.stdout.strip() or "no reason given").splitlines()[0]
        raise LoopUnavailable(f"{' '.join(command[:6])} ...: {words}")
