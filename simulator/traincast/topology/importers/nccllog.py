"""Logs of NCCL_DEBUG=INFO, with or without nccl-tests' rank lists around them: who ran where, rings, trees, NICs.

Lines start with ``host:pid:tid [device] NCCL INFO``, behind tags and times of whatever started the job. Processes
share one output, so a line may stop where another begins: every prefix in a line starts a message. Old releases cut
the list of a ring after 20 ranks.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from traincast.errors import TopologyError
from traincast.topology.importers.text import Problem, damaged, lines_of

FORM: Final = "nccl-log"
MARK: Final = re.compile(r"\bNCCL (?:INFO|WARN|TRACE)\b")
RANK_LINE: Final = re.compile(
    r"\bRank\s+(\d{1,7})\s+(?:Group\s+\d+\s+)?Pid\s+(\d{1,9})\s+on\s+(\S+)\s+device\s+(\d{1,4})"
    r"(?:\s+\[([0-9a-fA-Fx:.]+)\])?\s*(.*)"
)
_TAG: Final = re.compile(r"\[\d+,\d+\]<std(?:out|err)>:\s?")
_PREFIX: Final = re.compile(
    r"(?:(?P<host><?[A-Za-z0-9][A-Za-z0-9._-]{0,200}>?):(?P<pid>\d{1,9}):(?P<tid>\d{1,9}) )?"
    r"\[(?P<dev>-?\d{1,4})\] (?:[^\[\n]{0,80}? )?NCCL (?:INFO|WARN|TRACE) ?"
)
_INIT: Final = re.compile(r"comm 0x[0-9a-f]+ rank (\d{1,7}) n[rR]anks (\d{1,7})\b(.*)")
_FIELD: Final = re.compile(r"\b(cudaDev|nvmlDev|busId|commId) (0x[0-9a-f]{1,16}|[0-9a-f]{1,12})\b")
_RING: Final = re.compile(r"(?:Channel|Ring) (\d{1,3})(?:/\d{1,3})? :((?:\s+\d{1,7})+)\s*")
_HOP: Final = re.compile(
    r"(?:Channel|Ring) (\d{1,3})(?:/\d{1,3})? : (\d{1,7})(?:\[\w+\])? -> (\d{1,7})(?:\[\w+\])?"
    r"(?: \[(send|receive)\])? via ([^\s].*)"
)
_TREE: Final = re.compile(r"\[(\d{1,3})\] (-?[-\d/]+->-?[-\d/]+->-?[-\d/]+)")
_USING: Final = re.compile(r"NET/([\w ]+?)\s*: Using (\[\d.*)")
_NIC: Final = re.compile(r"\[\d{1,3}\]([\w.+-]+)(?::(\d{1,2})(?=[/ ;]|$))?(?:/(IB|RoCE))?")
_SPEED: Final = re.compile(r"\bname=([\w.+-]+) speed=(\d{1,7})\b")
_NET_WAY: Final = re.compile(r"NET/([\w ]+?)/(\d{1,3})(?:\(\d+\))?((?:/\w+)*)$")


@dataclass(frozen=True)
class LogRank:
    """One rank of one communicator, where it ran, and on which GPU (bus id or device number)."""

    comm: str
    rank: int
    nranks: int
    host: str
    pid: int
    gpu: str
    model: str
    line: int


@dataclass(frozen=True)
class LogRing:
    """The order of ranks in the ring of a channel."""

    comm: str
    channel: int
    ranks: tuple[int, ...]
    line: int


@dataclass(frozen=True)
class LogTree:
    """A rank's place in the tree of a channel: its parent (-1: the root) and children."""

    comm: str
    channel: int
    rank: int
    up: int
    down: tuple[int, ...]


@dataclass(frozen=True)
class LogHop:
    """A connection: `way` as NCCL names it (``P2P/IPC``, ``NET/IB``); `nic` is the number of the NIC, -1 for none."""

    channel: int
    source: int
    target: int
    way: str
    nic: int
    direct: bool
    line: int


@dataclass(frozen=True)
class LogNic:
    """A NIC that NCCL uses on a host; rate in bytes/s, 0.0 where the log does not say."""

    name: str
    kind: str
    bytes_per_s: float = 0.0


@dataclass(frozen=True)
class NcclLog:
    """What a log says. `nics` by host, in NCCL's numbering."""

    name: str
    version: str
    ranks: tuple[LogRank, ...]
    rings: tuple[LogRing, ...]
    trees: tuple[LogTree, ...]
    hops: tuple[LogHop, ...]
    nics: Mapping[str, tuple[LogNic, ...]]
    problems: tuple[Problem, ...]

    def world(self) -> tuple[LogRank, ...]:
        """The ranks of the largest communicator, each once, in order."""
        sizes = Counter(rank.comm for rank in self.ranks)
        size = {rank.comm: rank.nranks for rank in self.ranks}
        largest = max(sizes, key=lambda comm: (size[comm], sizes[comm]), default="")
        once = {rank.rank: rank for rank in reversed(self.ranks) if rank.comm == largest}
        return tuple(once[number] for number in sorted(once))


@dataclass(frozen=True)
class _Message:
    """One message with its sender; `where` tells one device of one process from another."""

    line: int
    host: str
    pid: int
    dev: int
    text: str

    @property
    def where(self) -> tuple[str, int, int]:
        """Host, process and device."""
        return self.host, self.pid, self.dev


@dataclass
class _State:
    """What has been read so far."""

    name: str
    version: str = ""
    ranks: list[LogRank] = field(default_factory=list)
    rings: list[LogRing] = field(default_factory=list)
    trees: list[LogTree] = field(default_factory=list)
    hops: list[LogHop] = field(default_factory=list)
    nics: dict[str, tuple[LogNic, ...]] = field(default_factory=dict)
    speeds: dict[tuple[str, str], float] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)


def parse_nccl_log(text: str, name: str = "input") -> NcclLog:
    """The ranks, rings, trees and NICs of a log.

    Raises TopologyError where no rank is named, and for logs of one-rank runs that only look like a large one.
    """
    lines = [_TAG.sub("", line) for line in lines_of(text)]
    state = _State(name)
    messages = _messages(lines)
    for message in messages:
        _read(state, message)
    _ranks(state, messages)
    listed = _listed(lines)
    _refuse(state, listed, len(messages))
    _join_listed(state, listed)
    _check_rings(state)
    for host, nics in state.nics.items():
        state.nics[host] = tuple(replace(nic, bytes_per_s=state.speeds.get((host, nic.name), 0.0)) for nic in nics)
    return NcclLog(
        name,
        state.version,
        tuple(state.ranks),
        tuple(state.rings),
        tuple(state.trees),
        tuple(state.hops),
        state.nics,
        tuple(state.problems),
    )


def _messages(lines: Sequence[str]) -> list[_Message]:
    found: list[_Message] = []
    for number, line in enumerate(lines, 1):
        starts = list(_PREFIX.finditer(line)) if "NCCL " in line else []
        for place, start in enumerate(starts):
            end = starts[place + 1].start() if place + 1 < len(starts) else len(line)
            host, pid = start.group("host") or "", int(start.group("pid") or 0)
            found.append(_Message(number, host, pid, int(start.group("dev")), line[start.end() : end].strip()))
    hosts = Counter(message.host for message in found)
    # the end of a cut line sticks to the next host's name: a rare name that ends in a common one is that one
    real = {
        host: max(
            (o for o in hosts if o and o != host and host.endswith(o) and hosts[o] >= 4 * n), key=len, default=host
        )
        for host, n in hosts.items()
    }
    return [replace(message, host=real[message.host]) for message in found]


def _read(state: _State, message: _Message) -> None:
    text = message.text
    if not state.version and (version := re.search(r"NCCL version ([\w.+-]+)", text)):
        state.version = version.group(1)
    if ring := _RING.fullmatch(text):
        ranks = tuple(int(rank) for rank in ring.group(2).split())
        state.rings.append(LogRing(repr(message.where), int(ring.group(1)), ranks, message.line))
    elif hop := _HOP.match(text):
        _hop(state, hop, message.line)
    elif text.startswith("Trees"):
        for channel, spec in _TREE.findall(text):
            if tree := _tree(repr(message.where), int(channel), spec):
                state.trees.append(tree)
    elif using := _USING.search(text):
        kind = using.group(1)
        nics = []
        for nic in _NIC.finditer(using.group(2).split(";")[0]):
            link = nic.group(3) or kind
            nics.append(LogNic(nic.group(1), "ib" if link == "IB" else "ethernet"))
        if nics and len(nics) >= len(state.nics.get(message.host, ())):
            state.nics[message.host] = tuple(nics)
    elif speed := _SPEED.search(text):
        state.speeds[message.host, speed.group(1)] = int(speed.group(2)) * 1e6 / 8


def _hop(state: _State, found: re.Match[str], line: int) -> None:
    channel, source, target, _, way = found.groups()
    net = _NET_WAY.match(way.strip())
    state.hops.append(
        LogHop(
            int(channel),
            int(source),
            int(target),
            f"NET/{net.group(1)}" if net else way.strip()[:60],
            int(net.group(2)) if net else -1,
            "GDRDMA" in net.group(3) if net else "direct" in way,
            line,
        )
    )


def _tree(where: str, channel: int, spec: str) -> LogTree | None:
    """``1/-1/-1->0->7``: children, rank, parent; releases before 2.7 print parent, rank, children."""
    left, middle, right = spec.split("->")[:3]
    if "/" in middle or middle in ("", "-1") or not re.fullmatch(r"\d{1,7}", middle):
        return None
    downs, up = (left, right) if "/" in left else (right, left)
    numbers = [int(word) for word in downs.split("/") if re.fullmatch(r"-?\d{1,7}", word)]
    if not re.fullmatch(r"-?\d{1,7}", up):
        return None
    return LogTree(where, channel, int(middle), int(up), tuple(number for number in numbers if number >= 0))


def _ranks(state: _State, messages: Sequence[_Message]) -> None:
    """Ranks by communicator, and the communicator of each ring and tree: the one its process set up then.

    Logs without commId tell communicators apart by size and by how many of that size a device had before.
    """
    seen: set[tuple[str, int, str]] = set()
    pointers: dict[tuple[tuple[str, int, int], int, int], list[str]] = {}
    inits: dict[str, list[tuple[int, str]]] = {}
    for message in messages:
        found = _INIT.search(message.text)
        if found is None or re.search(r"Destroy|Abort", message.text):
            continue
        said = dict(_FIELD.findall(found.group(3)))
        rank, size = int(found.group(1)), int(found.group(2))
        comm = said.get("commId", "")
        if not comm:
            mine = pointers.setdefault((message.where, rank, size), [])
            pointer = found.group(0).split(" ", 2)[1]
            mine += [pointer] if pointer not in mine else []
            comm = f"{size} ranks #{mine.index(pointer)}"
        inits.setdefault(repr(message.where), []).append((message.line, comm))
        if rank >= size:
            state.problems.append(Problem(state.name, message.line, f"rank {rank} of {size} ranks cannot be: left out"))
            continue
        gpu = _bus(said.get("busId", "")) or f"device {said.get('nvmlDev', message.dev)}"
        if (comm, rank, f"{message.host} {message.pid} {gpu}") not in seen:
            seen.add((comm, rank, f"{message.host} {message.pid} {gpu}"))
            state.ranks.append(LogRank(comm, rank, size, message.host, message.pid, gpu, "", message.line))

    def comm_at(where: str, line: int) -> str:
        listed = inits.get(where, [])
        before = [comm for at, comm in listed if at <= line]
        return before[-1] if before else (listed[0][1] if listed else "")

    state.rings = [replace(ring, comm=comm_at(ring.comm, ring.line)) for ring in state.rings]
    first = {where: listed[0][1] for where, listed in inits.items() if listed}
    state.trees = [replace(tree, comm=first.get(tree.comm, "")) for tree in state.trees]


def _bus(text: str) -> str:
    """``0000:08:00.0`` of NCCL's 8000: domain, bus, device and function without their dividers."""
    digits = text.removeprefix("0x").zfill(9)
    if not text or len(digits) > 12:
        return ""
    return f"{digits[:-5]}:{digits[-5:-3]}:{digits[-3:-1]}.{digits[-1]}"


def _listed(lines: Sequence[str]) -> list[LogRank]:
    """The ranks that nccl-tests lists before its table."""
    ranks: list[LogRank] = []
    for number, line in enumerate(lines, 1):
        found = RANK_LINE.search(line)
        if found:
            rank, pid, host, device, _, model = found.groups()
            ranks.append(
                LogRank("listed", int(rank), 0, host, int(pid), f"device {int(device)}", model.strip(), number)
            )
    return ranks


def _refuse(state: _State, listed: Sequence[LogRank], messages: int) -> None:
    """Errors of logs that show no job: nobody named, or several jobs of one rank each."""
    alone = [rank for rank in listed if rank.rank == 0]
    single = state.ranks and all(rank.nranks == 1 for rank in state.ranks)
    if len(alone) > 1 and (single or len(alone) == len(listed)):
        raise TopologyError(
            f"Rank 0 appears a second time: {len(alone)} independent one-rank runs (nccl-tests built without MPI), "
            "expected one job",
            where=f"{state.name}:{alone[1].line}",
            fix="build nccl-tests with MPI=1",
        )
    processes = {(rank.host, rank.pid) for rank in state.ranks}
    if single and len(processes) > 1:
        second = next(
            rank for rank in state.ranks if (rank.host, rank.pid) != (state.ranks[0].host, state.ranks[0].pid)
        )
        raise TopologyError(
            f"{len(processes)} processes with one rank each and nranks 1: independent runs, expected one job",
            where=f"{state.name}:{second.line}",
            fix="start the processes as one job",
        )
    if not state.ranks and not listed:
        what = f"{messages} NCCL lines, but no rank is named" if messages else "no rank is named"
        expected = "lines like 'comm 0x... rank 0 nranks 16 cudaDev 0 busId 8000 - Init COMPLETE'"
        raise damaged(state.name, 1, what, expected, "set NCCL_DEBUG=INFO; for a table alone use 'calibrate import'")


def _join_listed(state: _State, listed: Sequence[LogRank]) -> None:
    """GPU names of the listed ranks go to the ranks of the log; a list alone is a communicator of its own."""
    if not listed:
        return
    size = max(rank.rank for rank in listed) + 1
    once: dict[int, LogRank] = {}
    for rank in listed:
        if rank.rank in once:
            what = f"Rank {rank.rank} appears a second time (first in line {once[rank.rank].line}): left out"
            state.problems.append(Problem(state.name, rank.line, what))
        once.setdefault(rank.rank, rank)
    if max((rank.nranks for rank in state.ranks), default=0) >= size:
        models = {(rank.host, rank.pid): rank.model for rank in listed}
        state.ranks = [replace(r, model=r.model or models.get((r.host, r.pid), "")) for r in state.ranks]
        return
    state.ranks += [replace(rank, nranks=size) for rank in once.values()]


def _check_rings(state: _State) -> None:
    size = {rank.comm: rank.nranks for rank in state.ranks}
    cut: list[LogRing] = []
    kept: list[LogRing] = []
    for ring in state.rings:
        wanted = size.get(ring.comm, len(ring.ranks))
        (kept if len(ring.ranks) == wanted == len(set(ring.ranks)) else cut).append(ring)
    if cut:
        what = f"{len(cut)} rings list {len(cut[0].ranks)} ranks of {size.get(cut[0].comm, 0)}: cut lines, left out"
        state.problems.append(Problem(state.name, cut[0].line, what))
    state.rings = kept


def gpus_per_host(ranks: Sequence[LogRank]) -> int:
    """How many GPUs a host has at least, by its device numbers and by the ranks between its first and last."""
    most = 1
    for mine in ranks_by_host(ranks).values():
        numbers = [int(rank.gpu.split()[1]) for rank in mine if rank.gpu.startswith("device ")]
        inside = {rank.rank for rank in mine}
        others = {rank.rank for rank in ranks} - inside
        span = range(min(inside), max(inside) + 1)
        most = max(most, len(mine), *(number + 1 for number in numbers))
        most = most if any(rank in span for rank in others) else max(most, len(span))
    return most


def ranks_by_host(ranks: Sequence[LogRank]) -> dict[str, list[LogRank]]:
    """Ranks of each host, in order; a host whose GPU appears again is a second host of the same name."""
    hosts: dict[str, list[LogRank]] = {}
    for rank in sorted(ranks, key=lambda one: one.rank):
        for label in _labels(rank.host or "host"):
            mine = hosts.setdefault(label, [])
            if rank.gpu not in (other.gpu for other in mine):
                mine.append(rank)
                break
    return hosts


def _labels(host: str) -> Iterator[str]:
    yield host
    yield from (f"{host}#{number}" for number in range(2, 100_000))
