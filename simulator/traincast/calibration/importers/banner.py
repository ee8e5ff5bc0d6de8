"""What stands around a table of nccl-tests: ranks, settings, versions, environment, commands.

Host names, user names, addresses and paths are used to count and then forgotten or hashed.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from traincast.calibration.importers.lines import Line
from traincast.calibration.ops import op_name
from traincast.calibration.printed import printable
from traincast.calibration.records import RunInfo, host_label

_RANK: Final = re.compile(
    r"Rank\s+(\d{1,7})\s+(?:Group\s+(\d{1,7})\s+)?Pid\s+(\d+)\s+on\s+(\S+)\s+device\s+(\d{1,5})\s*(?:\[([^\]]*)\]\s*(.*))?"
)
_SETTINGS: Final = re.compile(
    r"nThread (\d{1,6}) nGpus (\d{1,6}) minBytes (\d{1,18}) maxBytes (\d{1,18}) step: (\d{1,18})\((factor|bytes)\)"
)
_WARMUP: Final = re.compile(r"warmup iters: (\d{1,9})")
_ITERATIONS: Final = re.compile(r"(?<!warmup )(?<!agg )iters: (\d{1,9})")
_REDUCED: Final = re.compile(r"Reducing maxBytes to (\d{1,18})")
_PERF: Final = re.compile(r"([a-z_]{4,24}?)_perf(?![a-z0-9])")
_STARTING: Final = re.compile(r"Collective test starting: (\w+)")
_CONCLUDED: Final = "Collective test concluded"
_OPCOUNT: Final = re.compile(r"\b([A-Z][A-Za-z]+): opCount")
_ARGUMENTS: Final = re.compile(r"([a-z_]{4,24}?_perf)\b((?:\s+-{1,2}[A-Za-z][\w-]*(?:[ =][\w.]+)?)*)")
_PROCESSES: Final = re.compile(r"(?:^|\s)(?:-np|-n|--ntasks)[ =](\d{1,6})\b|SLURM_NTASKS=(\d{1,6})")
_PER_PROCESS: Final = re.compile(r"\s-g\s*(\d{1,4})\b")
_THREADS: Final = re.compile(r"\s-t\s*(\d{1,4})\b")
_NRANKS: Final = re.compile(r"\bnranks (\d{1,7})\b")
_VERSION: Final = re.compile(r"\bNCCL version (\d[\w.]*)(?:\+cuda([\d.]+))?")
_LIBRARY: Final = re.compile(r"nccl-library=(\d+)")
_TOOL: Final = re.compile(r"\b(nccl-tests version|rccl-tests:? [Vv]ersion)\s+([\w.:-]+)")
_SET: Final = re.compile(
    r"\b((?:NCCL|RCCL|UCX|FI|TORCH_NCCL)_[A-Z0-9_]+|CUDA_DEVICE_MAX_CONNECTIONS)(?:=|\s+set by environment to )"
    r"([\w.,:+^-]{1,60})"
)
_PRIVATE: Final = re.compile(r"HOST|ADDR|ID$|FILE|PATH|SOCKET|SERVER|COMM_ID|IFNAME|USER|KEY|TOKEN|SECRET")
_LAUNCHERS: Final = ("mpirun", "mpiexec", "srun", "torchrun", "torch.distributed")


@dataclass(frozen=True)
class Rank:
    """One line of the list of ranks."""

    line: int
    rank: int
    group: int
    process: str
    host: str
    device: int
    bus: str
    gpu: str


@dataclass(frozen=True)
class Sweep:
    """The sizes that a run was asked for, in bytes."""

    line: int
    minimum: int
    maximum: int
    step: int
    factor: bool


@dataclass(frozen=True)
class Banner:
    """Everything that the lines around one table say about it."""

    ranks: tuple[Rank, ...] = ()
    elided: bool = False
    sweep: Sweep | None = None
    run: RunInfo = field(default_factory=RunInfo)
    text_op: str | None = None
    text_line: int = 0
    told_ranks: int | None = None
    command_ranks: tuple[int, ...] = ()


def read_rank(line: Line) -> Rank | None:
    """The rank that a line lists, or None."""
    if "Rank" not in line.text:
        return None
    found = _RANK.search(line.text)
    if found is None:
        return None
    rank, group, process, host, device, bus, gpu = found.groups()
    return Rank(line.number, int(rank), int(group or 0), process, host, int(device), bus or "", printable(gpu or ""))


def read_banner(lines: Sequence[Line], behind: Sequence[Line] = ()) -> Banner:
    """What `lines` (from the end of the previous table to the first row) and the lines `behind` it say."""
    ranks, elided = _ranks(lines)
    texts = [f"{line.text} {line.message}" for line in lines]
    op, op_line = _named_op(lines, behind)
    threads, per_process, sweep, iterations = _settings(lines)
    return Banner(
        ranks=ranks,
        elided=elided,
        sweep=sweep,
        run=_run_info(texts, ranks, iterations),
        text_op=op,
        text_line=op_line,
        told_ranks=_told([*texts, *(line.message for line in behind)]),
        command_ranks=_command_ranks(texts, threads * per_process),
    )


def highest_rank(ranks: Sequence[Rank]) -> int | None:
    """Ranks of the communicator: the highest rank + 1, or those of one group where the ranks were split."""
    if not ranks:
        return None
    groups = Counter(one.group for one in {one.rank: one for one in ranks}.values())
    if len(groups) > 1:
        return groups.most_common()[0][1] if len(set(groups.values())) == 1 else None
    return max(one.rank for one in ranks) + 1


def count_nodes(ranks: Sequence[Rank], total: int | None) -> int | None:
    """Nodes of the listed ranks; None where the lines do not tell.

    Host names may have been anonymised to one name, so a device that appears twice on a host means two hosts.
    Where ranks lack, nodes are whole ones of as many devices as the listed ranks show, if these agree.
    """
    if not ranks or total is None:
        return None
    if len({one.rank for one in ranks}) == total:
        places = Counter((one.host, one.device, one.bus) for one in ranks)
        busiest: dict[str, int] = {}
        for (host, _, _), times in places.items():
            busiest[host] = max(busiest.get(host, 0), times)
        return sum(busiest.values())
    per_node = max(one.device for one in ranks) + 1
    whole = total % per_node == 0 and all(one.rank % per_node == one.device for one in ranks)
    return total // per_node if whole else None


def _ranks(lines: Sequence[Line]) -> tuple[tuple[Rank, ...], bool]:
    """All lines of ranks, and whether an ellipsis stands among or right behind them."""
    ranks = [rank for line in lines if (rank := read_rank(line))]
    numbers = {one.line for one in ranks}
    dots = [line.number for line in lines if line.bare in ("...", "…", "[...]")]
    return tuple(ranks), any(number - 1 in numbers or number + 1 in numbers for number in dots)


def _named_op(lines: Sequence[Line], behind: Sequence[Line]) -> tuple[str | None, int]:
    """The collective that a banner, a command or NCCL's log names; what stands nearest to the table counts."""
    before = [line for line in reversed(lines) if _CONCLUDED not in line.text]
    after = [line for line in behind if _CONCLUDED in line.text][:1]
    logged = [*lines, *behind]
    for pattern, where in ((_STARTING, before), (_PERF, before), (_OPCOUNT, logged), (_PERF, after)):
        for line in where:
            for word in pattern.findall(f"{line.text} {line.message}"):
                name = op_name(word)
                if name is not None:
                    return name, line.number
    return None, 0


def _settings(lines: Sequence[Line]) -> tuple[int, int, Sweep | None, tuple[int | None, int | None]]:
    """Threads, GPUs a process, the sweep, and (warm-up, measured) iterations of the last line of settings."""
    threads, per_process, sweep = 1, 1, None
    iterations: tuple[int | None, int | None] = (None, None)
    for line in lines:
        found = _SETTINGS.search(line.text)
        if found:
            threads, per_process = int(found.group(1)), int(found.group(2))
            step = int(found.group(5))
            sweep = Sweep(line.number, int(found.group(3)), int(found.group(4)), step, found.group(6) == "factor")
            iterations = _number(_WARMUP, line.text), _number(_ITERATIONS, line.text)
        reduced = _REDUCED.search(line.text)
        if reduced and sweep is not None:
            top = min(sweep.maximum, int(reduced.group(1)))
            sweep = Sweep(sweep.line, sweep.minimum, top, sweep.step, sweep.factor)
    return threads, per_process, sweep, iterations


def _number(pattern: re.Pattern[str], text: str) -> int | None:
    found = pattern.search(text)
    return int(found.group(1)) if found else None


def _told(texts: Sequence[str]) -> int | None:
    """The size of the communicator in NCCL's log; None where there are several of different size."""
    found = {int(number) for text in texts for number in _NRANKS.findall(text)}
    return found.pop() if len(found) == 1 else None


def _command_ranks(texts: Sequence[str], settings: int) -> tuple[int, ...]:
    """Ranks that the commands before a table may have started."""
    processes = {int(one or two) for text in texts for one, two in _PROCESSES.findall(text)}
    devices = {settings}
    for text in texts:
        if _PERF.search(text):
            per = [int(number) for number in _PER_PROCESS.findall(text)] or [1]
            threads = [int(number) for number in _THREADS.findall(text)] or [1]
            devices.add(per[-1] * threads[-1])
    return tuple(sorted({count * device for count in processes or {1} for device in devices} - {0, 1}))


def _run_info(texts: Sequence[str], ranks: Sequence[Rank], iterations: tuple[int | None, int | None]) -> RunInfo:
    whole = "\n".join(texts)
    version, library, tool = _VERSION.search(whole), _LIBRARY.search(whole), _TOOL.search(whole)
    driver = re.search(r"\b(?:cudaDriverVersion|Driver Version:?) ?([\d.]+)", whole)
    command = _ARGUMENTS.search(whole)
    gpus = sorted({one.gpu for one in ranks if one.gpu})
    return RunInfo(
        tool=f"{tool.group(1).split()[0].rstrip(':')} {tool.group(2)}" if tool else "nccl-tests",
        gpu=" + ".join(gpus) or None,
        driver=driver.group(1) if driver else None,
        nccl=version.group(1) if version else nccl_version(library.group(1)) if library else None,
        cuda=version.group(2) if version else None,
        command=" ".join(command.group(0).split()) if command else None,
        launcher=next((name for name in _LAUNCHERS if re.search(rf"(?<![\w-]){name}\b", whole)), None),
        iterations=iterations[1],
        warmup_iterations=iterations[0],
        groups=len({one.group for one in ranks}) or 1,
        hosts=tuple(sorted({host_label(one.host) for one in ranks})),
        environment=environment_of(whole),
    )


def environment_of(text: str) -> tuple[tuple[str, str], ...]:
    """The variables in a text that change what a collective does, without those that name hosts or paths."""
    found = {name: value.rstrip(".,:") for name, value in _SET.findall(text) if not _PRIVATE.search(name)}
    return tuple(sorted(found.items()))


def nccl_version(code: str) -> str | None:
    """``2.23.4`` of NCCL's version code 22304 (2803 for 2.8.3, as versions before 2.9 count)."""
    if not code.isdigit() or len(code) > 7:
        return None
    number = int(code)
    if number < 1000:
        return None
    major, rest = divmod(number, 10000 if number >= 10000 else 1000)
    return f"{major}.{rest // 100}.{rest % 100}"
