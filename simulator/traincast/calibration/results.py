"""What files of results hold for a calibration: curves of collectives, and kernels.

A file is anything that the importers read, or a CSV of curves (`curves`). Rows that contradict themselves, that took
only one rank, or that the suite calls unstable or too short are not used; the problems say so.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from traincast.calibration.collect import FileImport, import_files
from traincast.calibration.curves import Curve, CurvePoint, marked, read_curves
from traincast.calibration.records import Record, RunInfo
from traincast.errors import DataError

_GPUS_A_THREAD: Final = re.compile(r"(?:^|\s)(?:-g|--ngpus)[ =](\d{1,3})\b")
_GRAPH: Final = re.compile(r"(?:^|\s)(?:-G|--cudagraph)[ =][1-9]")
_UNUSED: Final = {
    "one_rank": "one rank has nobody to communicate with",
    "unstable": "unstable by the suite's own account",
    "too_short": "near the resolution of the clock",
    "all_groups": "several groups at once: what they share is not known",
    "spike": "spike: slower than 1.3 times the next larger size",
}
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

    @property
    def gpus(self) -> tuple[str, ...]:
        """GPUs that the results name, in their order."""
        named = [curve.gpu for curve in self.curves] + [one.run.gpu or "" for one in self.kernels]
        return tuple(dict.fromkeys(name for name in named if name))


def read_results(paths: Sequence[Path], stated: Stated) -> Results:
    """The results of all files. Raises DataError where one cannot be read or nothing is left."""
    curves: list[Curve] = []
    kernels: list[Record] = []
    problems: list[str] = []
    for path in paths:
        if _is_curve_table(path):
            found = read_curves(path)
            curves += [replace(one, gpu=stated.gpu or one.gpu, net=stated.net or one.net) for one in found]
            continue
        (one,) = import_files([path], stated.op)
        if one.imported.refusals:
            refusal = one.imported.refusals[0]
            raise DataError(refusal.what, where=f"{one.file}:{refusal.line}", fix="leave this file out, or mend it")
        problems += [f"{one.file}:{problem.line}: {problem.what}" for problem in one.imported.problems]
        curves += _curves(one, stated)
        kernels += _kernels(one.imported.records, stated, one.file, problems)
    if not curves and not kernels:
        raise DataError("no measurement that a profile could learn from", fix="name logs of nccl-tests or of the suite")
    problems += [
        f"{curve.id}: {point.size_bytes:.0f} bytes: {point.problem}"
        for curve in curves
        for point in curve.points
        if point.problem
    ]
    return Results(tuple(curves), tuple(kernels), tuple(path.name for path in paths), tuple(problems))


def _is_curve_table(path: Path) -> bool:
    try:
        with path.open(encoding="utf-8-sig") as stream:
            return "curve_id" in stream.readline().split(",")
    except (OSError, UnicodeDecodeError):
        return False


def _curves(one: FileImport, stated: Stated) -> Iterator[Curve]:
    """One curve a collective, group size and run of a file."""
    found: dict[tuple[object, ...], list[Record]] = {}
    for record in one.imported.records:
        if record.kind == "collective" and record.op is not None and record.ranks is not None:
            params = dict(record.params)
            key = (record.run.index, record.op, record.ranks, record.nodes, record.algo, record.proto)
            found.setdefault((*key, params.get("family"), params.get("mode")), []).append(record)
    for records in found.values():
        first = records[0]
        named = dict(first.params).get("family")
        family = f" {named}" if named else ""
        yield Curve(
            id=f"{one.file} run {first.run.index}{family} {first.op} {first.ranks}",
            gpu=stated.gpu or first.run.gpu or "",
            net=stated.net or _net(first.run),
            nodes=first.nodes if first.nodes is not None else first.run.nodes,
            ranks=first.ranks or 0,
            nccl=first.run.nccl or "",
            op=first.op or "",
            algo=first.algo or "auto",
            proto=first.proto or "auto",
            dtype=first.dtype or "",
            launch=_launch(first.run),
            source=one.file,
            points=marked(tuple(_points(records))),
        )


def _points(records: Iterable[Record]) -> Iterator[CurvePoint]:
    for record in records:
        problem = next((text for flag, text in _UNUSED.items() if flag in record.flags), None)
        if record.size_bytes and record.time_us:
            yield CurvePoint(float(record.size_bytes), record.time_us, False, problem, record.line)
        if record.size_bytes and record.in_place_time_us:
            yield CurvePoint(float(record.size_bytes), record.in_place_time_us, True, problem, record.line)


def _net(run: RunInfo) -> str:
    """The kind of network as far as the environment tells it."""
    text = " ".join(f"{name}={value}" for name, value in run.environment).lower()
    return next((kind for word, kind in _ADAPTER.items() if word in text), "")


def _launch(run: RunInfo) -> str:
    """Who launched, by the command: one process for several GPUs, a CUDA graph, or a process each."""
    command = run.command or ""
    found = _GPUS_A_THREAD.search(command)
    if run.backend is None and found is not None and int(found.group(1)) > 1:
        return "single"
    if _GRAPH.search(command):
        return "graph"
    return "process" if found is not None or run.launcher or run.backend else ""


def _kernels(records: Iterable[Record], stated: Stated, file: str, problems: list[str]) -> Iterator[Record]:
    for record in records:
        if record.kind != "kernel":
            continue
        why = next((text for flag, text in _UNUSED.items() if flag in record.flags), None)
        if why is not None:
            problems.append(f"{file}:{record.line}: {why}")
            continue
        yield replace(record, run=replace(record.run, gpu=stated.gpu)) if stated.gpu else record
