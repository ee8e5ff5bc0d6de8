"""What files of results hold for a calibration: curves of collectives, and kernels.

A file is anything that the importers read, or a CSV of curves (`curves`). Rows that contradict themselves, that took
only one rank, whose median is known to no better than 20 %, that are too short, or that were measured without a GPU
are not used; the problems count them and say why.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from traincast.calibration.collect import FileImport, import_files
from traincast.calibration.curves import TIMES, Curve, CurvePoint, is_curve_table, marked, read_curves, unusable
from traincast.calibration.profile_file import counted, names_text
from traincast.calibration.records import Record, RunInfo
from traincast.calibration.repeats import Counted, distinct_files
from traincast.calibration.stated import NamedGpus
from traincast.calibration.suite_groups import SUITE, groups_at_once, node_gpus
from traincast.errors import DataError

_GPUS_A_THREAD: Final = re.compile(r"(?:^|\s)(?:-g|--ngpus)[ =](\d{1,3})\b")
_GRAPH: Final = re.compile(r"(?:^|\s)(?:-G|--cudagraph)[ =][1-9]")
_UNUSED: Final = {
    "one_rank": "one rank has nobody to communicate with",
    "too_short": "near the resolution of the clock",
    "spike": "spike: slower than 1.3 times the next larger size",
}
MOST_HALF_WIDTH: Final = 0.2
"""A median whose 95 % interval reaches further than this share of it to either side says too little."""
_TOLD_BESIDE: Final = "gemm"
"""What of two things at once tells a constant: how much a collective slows a product (`overlap.slowdown`)."""
_COUNTS: Final = ("m", "n", "k", "batch", "b", "heads", "kv_heads", "s", "d")
NOT_TOLD: Final = "the collective is not told"
_MOST_COUNT: Final = 1e12
_MOST_RATE: Final = 1e18
_ADAPTER: Final = {"efa": "EFA", "gpudirecttcpx": "TCPX", "fastrak": "TCPXO", "socket": "TCP socket"}


@dataclass(frozen=True)
class Stated:
    """What the user says that the files do not: GPU, network ("8x400G IB NDR"), and the collective."""

    gpu: str | None = None
    net: str | None = None
    op: str | None = None


@dataclass(frozen=True)
class Results:
    """Curves and kernels of all files, the files' names, and what was not used (file:line: why)."""

    curves: tuple[Curve, ...] = ()
    kernels: tuple[Record, ...] = ()
    files: tuple[str, ...] = ()
    problems: tuple[str, ...] = field(default=())
    stated: Stated = Stated()

    @property
    def points(self) -> int:
        """Usable points of all curves."""
        return sum(len(curve.usable) for curve in self.curves)

    @property
    def gpus(self) -> tuple[str, ...]:
        """GPUs that the results name, in their order."""
        named = [curve.gpu for curve in self.curves] + [one.run.gpu or "" for one in self.kernels]
        return tuple(dict.fromkeys(name for name in named if name))


def read_results(paths: Sequence[Path], stated: Stated) -> Results:
    """The results of all files; those that are named twice count once. Raises DataError where one cannot be read,
    where files name several GPUs and the user one, or where nothing is left."""
    paths, problems = distinct_files(paths)
    named, counted_rows, openings = NamedGpus(), Counted(), []
    curves: list[Curve] = []
    kernels: list[Record] = []
    for path in paths:
        if is_curve_table(path):
            found, records = list(read_curves(path)), []
        else:
            one = _imported(path, stated.op)
            openings += _openings(one)
            problems += [f"{one.file}:{problem.line}: {problem.what}" for problem in one.imported.problems]
            records = _on_gpus(one, problems)
            problems += _untold(one.file, records)
            found, records = list(_curves(one.file, records)), _kernels(records, one.file, problems)
        named.add(path.name, found, records)
        curves += counted_rows.new_curves(path.name, found, is_curve_table(path))
        kernels += counted_rows.new_kernels(path.name, records)
    problems += counted_rows.remarks
    if stated.gpu is not None:
        problems += named.against(stated.gpu)
    problems += unused_points(curves)
    curves = [replace(one, gpu=stated.gpu or one.gpu, net=stated.net or one.net) for one in curves]
    if stated.gpu is not None:
        kernels = [replace(one, run=replace(one.run, gpu=stated.gpu)) for one in kernels]
    results = Results(tuple(curves), tuple(kernels), tuple(path.name for path in paths), tuple(problems), stated)
    if not results.points and not kernels:
        if openings:
            raise openings[0]
        why = f": {'; '.join(problems[-2:])}" if problems else ""
        raise DataError(f"no measurement that a profile could learn from{why}", fix="name results of runs on GPUs")
    return results


def _imported(path: Path, op: str | None) -> FileImport:
    """What a file that is no CSV of curves holds. Raises DataError where it is refused."""
    (one,) = import_files([path], op)
    if one.imported.refusals:
        refusal = one.imported.refusals[0]
        fix = "leave this file out; `traincast calibrate import FILE` shows what is wrong with it"
        raise DataError(refusal.what, where=f"{one.file}:{refusal.line}", fix=fix)
    return one


def _openings(file: FileImport) -> list[DataError]:
    """What to say where nothing of a file can be used since nobody tells which collective it measured."""
    open_ones = [one for one in file.imported.records if one.kind == "collective" and one.op is None]
    if not any("one_rank" not in one.flags for one in open_ones):
        return []
    note = next((one for one in file.imported.problems if one.what.startswith(NOT_TOLD)), None)
    names = note.what.removeprefix(NOT_TOLD).split(";")[0].strip(": ").split(" or ") if note else []
    example = names[0] if names and "all_reduce" not in names else "all_reduce"
    what = f"{NOT_TOLD}: {' or '.join(names)}" if names else NOT_TOLD
    fix = f"say which one was measured, such as --op {example}"
    return [DataError(what, where=f"{file.file}:{open_ones[0].line}", fix=fix)]


def _on_gpus(one: FileImport, problems: list[str]) -> list[Record]:
    """The records of a file but those that neither NCCL nor a GPU made; `problems` gets how many."""
    kept = []
    for record in one.imported.records:
        backend = record.run.backend or "nccl"
        if backend == "nccl" or (record.kind == "kernel" and record.run.gpu):
            kept.append(record)
    lost = len(one.imported.records) - len(kept)
    if lost:
        problems.append(
            f"{one.file}: {counted(lost, 'record')} not used: measured over Gloo, they tell nothing of NCCL or a GPU"
        )
    return kept


def _untold(file: str, records: Iterable[Record]) -> Iterator[str]:
    """How many records no curve and no kernel is made of, a line a reason."""
    lost: Counter[str] = Counter()
    for record in records:
        if _beside_product(record):
            continue
        if record.kind not in ("collective", "kernel"):
            lost[f"{record.kind}: it tells no constant"] += 1
        elif record.kind == "collective" and record.op is None:
            lost["the collective is not told; add --op NAME"] += 1
        elif record.kind == "collective" and record.ranks is None:
            lost["the number of ranks is not told"] += 1
    for why, count in lost.items():
        yield f"{file}: {counted(count, 'record')} not used: {why}"


def unused_points(curves: Iterable[Curve]) -> tuple[str, ...]:
    """What is not used of curves, a line a reason: how many points of which curves."""
    found: dict[str, list[tuple[Curve, CurvePoint]]] = {}
    for curve in curves:
        for point in curve.points:
            if point.problem is not None:
                found.setdefault(point.problem.split(":")[0], []).append((curve, point))
    return tuple(_unused_text(cases) for cases in found.values())


def _unused_text(cases: Sequence[tuple[Curve, CurvePoint]]) -> str:
    curve, point = cases[0]
    size = f"{point.size_bytes:.0f} bytes: " if unusable(point.size_bytes, 1.0) is None else ""
    place = f"{curve.file}:{point.line}: " if curve.file else ""
    if len(cases) == 1:
        return f"{place}{curve.id}: {size}{point.problem}"
    names = list(dict.fromkeys(one.id for one, _ in cases))
    differ = len({one.problem for _, one in cases}) > 1
    reason = f"such as {place}{size}{point.problem}" if differ else point.problem
    whose = names[0] if len(names) == 1 else f"{len(names)} curves ({names_text(names)})"
    return f"{len(cases)} points of {whose} not used: {reason}"


def _curves(file: str, measured: Iterable[Record]) -> Iterator[Curve]:
    """One curve a collective, group size, pattern (a ring and a ping-pong are two) and run of a file."""
    found: dict[tuple[object, ...], list[Record]] = {}
    for record in measured:
        if record.kind == "collective" and record.op is not None and record.ranks is not None:
            params = dict(record.params)
            key = (same_run(record.run), record.op, record.ranks, record.nodes, record.algo, record.proto)
            words = (params.get("family"), params.get("mode"), params.get("pattern"), params.get("groups"))
            found.setdefault((*key, *words), []).append(record)
    for records in found.values():
        first = records[0]
        groups = groups_at_once(first)
        yield Curve(
            id=" ".join((file, "run", str(first.run.index), *group_words(first), first.op or "", str(first.ranks))),
            gpu=first.run.gpu or "",
            net=_net(first.run),
            nodes=first.nodes if first.nodes is not None else first.run.nodes,
            ranks=first.ranks or 0,
            nccl=first.run.nccl or "",
            op=first.op or "",
            algo=first.algo or "auto",
            proto=first.proto or "auto",
            dtype=first.dtype or "",
            launch=_launch(first.run),
            source=file,
            points=marked(tuple(_points(records, groups is not None))),
            node_gpus=node_gpus(first.run),
            groups=groups or (),
        )


def same_run(run: RunInfo) -> RunInfo:
    """What a run of the suite has in common with one that went on in its file (`--resume`); other runs as they are."""
    if not (run.tool or "").startswith(SUITE):
        return run
    return replace(run, index=0, date=None, command=None, hosts=())  # the labels of hosts are new in every run


def group_words(record: Record) -> tuple[str, ...]:
    """Over what a collective ran: family, `alone` where one group of several ran by itself, pattern of the messages."""
    params = dict(record.params)
    pattern = str(params.get("pattern", ""))
    alone = "alone" if params.get("mode") == "alone" else ""
    return tuple(word for word in (str(params.get("family", "")), alone, "" if pattern == "pair" else pattern) if word)


def _points(records: Iterable[Record], placed: bool) -> Iterator[CurvePoint]:
    """`placed`: it is known where the groups of these records lie."""
    for record in records:
        flagged = _flagged(record)
        if "all_groups" in record.flags and not placed:
            flagged = flagged or "several groups at once: where they lie is not told"
        for in_place, time in ((False, record.time_us), (True, record.in_place_time_us)):
            if record.size_bytes and time:
                problem = flagged or unusable(float(record.size_bytes), time)
                width = record.half_width or 0.0
                yield CurvePoint(float(record.size_bytes), time, in_place, problem, record.line, width)


def _flagged(record: Record) -> str | None:
    """Why a record is not used by its own account; None: it is."""
    if record.half_width is not None and record.half_width > MOST_HALF_WIDTH:
        return f"the median is known to no better than {100 * MOST_HALF_WIDTH:.0f} %"
    if "unstable" in record.flags and record.half_width is None:
        return "unstable, with too few samples to say how well the median is known"
    return next((text for flag, text in _UNUSED.items() if flag in record.flags), None)


def _beside_product(record: Record) -> bool:
    """Whether a record says how much a collective slows a product that runs beside it."""
    return record.kind == "overlap" and dict(record.params).get("what") == _TOLD_BESIDE


def _net(run: RunInfo) -> str:
    """The kind of network as far as the environment tells it."""
    text = " ".join(f"{name}={value}" for name, value in run.environment).lower()
    return next((kind for word, kind in _ADAPTER.items() if word in text), "")


def _launch(run: RunInfo) -> str:
    """Who launched, by the command: one process for several GPUs, a CUDA graph, or a process each; the suite measures
    what PyTorch's calls take, its own time included."""
    if (run.tool or "").startswith(SUITE):
        return "runtime"
    command = run.command or ""
    found = _GPUS_A_THREAD.search(command)
    if run.backend is None and found is not None and int(found.group(1)) > 1:
        return "single"
    if _GRAPH.search(command):
        return "graph"
    return "process" if found is not None or run.launcher or run.backend else ""


def _kernels(records: Iterable[Record], file: str, problems: list[str]) -> list[Record]:
    """The kernels that can be used; `problems` gets how many others there are, a line a reason."""
    kept: list[Record] = []
    lost: dict[str, list[Record]] = {}
    for record in records:
        if record.kind != "kernel" and not _beside_product(record):
            continue
        why = _flagged(record) or _impossible(record)
        if why is not None:
            lost.setdefault(why, []).append(record)
            continue
        kept.append(record)
    for why, rows in lost.items():
        ops = names_text(dict.fromkeys(row.op or "not told" for row in rows))
        place = f"{file}:{rows[0].line}" if rows[0].line else file
        problems.append(f"{place}: {counted(len(rows), 'kernel')} not used ({ops}): {why}")
    return kept


def _impossible(record: Record) -> str | None:
    """Why the figures of a kernel cannot be; None: they can."""
    if record.time_us is not None and not TIMES[0] <= record.time_us <= TIMES[1]:
        return "no time that can be"
    rates = (record.flops_per_s, record.bandwidth_bytes_per_s)
    if any(rate is not None and not 0 < rate <= _MOST_RATE for rate in rates):
        return "no rate that can be"
    sizes = [value for name, value in record.params if name in _COUNTS and isinstance(value, int | float)]
    return None if all(1 <= size <= _MOST_COUNT for size in sizes) else "no shape that can be"
