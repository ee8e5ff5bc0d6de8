"""Measured collectives as curves: one collective on one group at several sizes.

Two forms of CSV are read: one measured point a row (`size_bytes`, `time_us`), and the project's own, one curve a row
with `sizes_bytes` and `times_us` as lists. Beside its name a curve's columns are `gpu`, `nodes`, `gpus` (ranks), `net`,
`nccl_version`, `op`, `algo`, `proto`, `dtype`, `inplace`, and in the project's own form `launch`.
"""

import csv
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Final

from traincast.errors import DataError

ESSENTIAL: Final = ("curve_id", "gpu", "nodes", "gpus", "net", "nccl_version", "op")
POINT: Final = ("size_bytes", "time_us")
PACKED: Final = ("sizes_bytes", "times_us")

SPIKE: Final = 1.3
"""A point that took longer than this times the next larger size is a spike of the network or the machine."""
TOLERANCE: Final = 0.03
"""Most that size / time may differ from the printed rate, beyond what its decimals allow."""

LARGEST: Final = 2.0**50
"""Largest size in bytes of a collective that a row may name."""
MOST_RANKS: Final = 2**24
TIMES: Final = (1e-3, 1e12)
"""Shortest and longest time in us that a row may name."""

NO_SIZE: Final = "no size that can be"
NO_TIME: Final = "no time that can be"

LAUNCHES: Final = ("process", "thread", "single", "graph", "runtime", "kernel")
"""Who launched: a process or a thread for each GPU, one process for all, a CUDA graph, a framework's runtime (its own
time is in), or only the kernels were timed."""


@dataclass(frozen=True)
class CurvePoint:
    """One measured time; `problem`: why it is not used (None: it is). `line` is that of the file.

    `half_width` is half of the 95 % interval of the time as a share of it, 0 where it is not told.
    """

    size_bytes: float
    time_us: float
    in_place: bool = False
    problem: str | None = None
    line: int = 0
    half_width: float = 0.0


@dataclass(frozen=True)
class Curve:
    """One collective on one group; texts as the log has them. `nodes` None: not told.

    `node_gpus` are the GPUs of a node that take part in the run (None: not told), `groups` all groups that ran at once,
    as ranks that fill one node after the other (empty: not told; one group by itself). `file`: the table that its
    points' lines are of, where one is.
    """

    id: str
    gpu: str
    net: str
    nodes: int | None
    ranks: int
    nccl: str
    op: str
    algo: str = "auto"
    proto: str = "auto"
    dtype: str = ""
    launch: str = ""
    source: str = ""
    points: tuple[CurvePoint, ...] = ()
    node_gpus: int | None = None
    groups: tuple[tuple[int, ...], ...] = ()
    file: str = ""

    @property
    def usable(self) -> tuple[CurvePoint, ...]:
        """Points without a problem."""
        return tuple(point for point in self.points if point.problem is None)

    @property
    def sizes(self) -> int:
        """Distinct sizes."""
        return len({point.size_bytes for point in self.points})


def read_curves(path: Path) -> tuple[Curve, ...]:
    """The curves of a CSV file, in order of their first rows. Raises DataError where it cannot be read or lacks
    columns.

    A row whose figures cannot be is kept as a point with a problem.
    """
    try:
        return _curves(path, csv.reader(io.StringIO(_text(path.read_bytes()), newline="")))
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise DataError(f"cannot be read: {reason}", where=str(path), fix="check the path") from error
    except UnicodeDecodeError as error:
        what = f"is not {error.encoding.upper()} text (byte {error.start})"
        raise DataError(what, where=str(path), fix="give a CSV file") from error
    except csv.Error as error:
        raise DataError(f"is not CSV: {error}", where=str(path), fix="mend the file") from error


def is_curve_table(path: Path) -> bool:
    """Whether a file has the header of a CSV of curves; False where it cannot be read."""
    try:
        with path.open("rb") as stream:
            header = _text(stream.readline(4096)).lower()
    except (OSError, UnicodeDecodeError):
        return False
    return "curve_id" in (name.strip() for name in header.split(","))


def _text(data: bytes) -> str:
    """Text of UTF-8, or of UTF-16 with its mark, which spreadsheets write."""
    marked_16 = data[:2] in (b"\xff\xfe", b"\xfe\xff")
    return data[: len(data) - len(data) % 2 if marked_16 else None].decode("utf-16" if marked_16 else "utf-8-sig")


def _curves(path: Path, reader: "Iterator[list[str]]") -> tuple[Curve, ...]:
    header = [name.strip() for name in next(reader, [])]
    lacking = [name for name in ESSENTIAL if name not in header]
    packed = set(PACKED) <= set(header)
    if not packed:
        lacking += [name for name in POINT if name not in header]
    if lacking:
        raise DataError(
            f"lacks the column{'s' if len(lacking) > 1 else ''} {', '.join(lacking)}",
            where=f"{path}:1",
            fix=f"use columns {', '.join((*ESSENTIAL, *POINT))}",
        )
    found: dict[tuple[str, ...], list[CurvePoint]] = {}
    heads: dict[tuple[str, ...], Curve] = {}
    for number, cells in enumerate(reader, start=2):
        if not any(cell.strip() for cell in cells):
            continue
        row = dict(zip(header, (cell.strip() for cell in cells), strict=False))
        head = _head(row, f"{path}:{number}")
        key = (head.id, head.gpu, head.net, str(head.nodes), str(head.ranks), head.op, head.algo, head.proto)
        heads.setdefault(key, head)
        found.setdefault(key, []).extend(_packed(row, number, path) if packed else [_point(row, number)])
    return tuple(replace(heads[key], points=marked(points), file=path.name) for key, points in found.items())


def _head(row: Mapping[str, str], where: str) -> Curve:
    nodes, ranks = _count(row.get("nodes", "")), _count(row.get("gpus", ""))
    if not row.get("curve_id"):
        raise DataError("a row has no curve_id", where=where, fix="name the curve that it belongs to")
    return Curve(
        id=row["curve_id"],
        gpu=row.get("gpu", ""),
        net=row.get("net", ""),
        nodes=nodes,
        ranks=ranks or 0,
        nccl=row.get("nccl_version", ""),
        op=row.get("op", ""),
        algo=row.get("algo", "") or "auto",
        proto=row.get("proto", "") or "auto",
        dtype=row.get("dtype", ""),
        launch=row.get("launch", ""),
        source=row.get("source", ""),
    )


def _count(text: str) -> int | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return int(value) if 0 < value <= MOST_RANKS and value == int(value) else None


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _point(row: Mapping[str, str], line: int) -> CurvePoint:
    texts = {name: row.get(name, "") for name in POINT}
    size, time = map(_number, texts.values())
    in_place = row.get("inplace", "").lower() in ("1", "y", "yes", "true")
    problem = _no_count(row) or _no_number(texts) or _rate_clash(size, time, row.get("algbw_gbps", ""))
    return CurvePoint(size, time, in_place, problem, line)


def _packed(row: Mapping[str, str], line: int, path: Path) -> Iterator[CurvePoint]:
    sizes, times = row.get("sizes_bytes", "").split(), row.get("times_us", "").split()
    in_place = row.get("inplace", "") == "1"
    if len(sizes) != len(times) or not sizes:
        raise DataError(f"{len(sizes)} sizes, {len(times)} times", where=f"{path}:{line}", fix="give one time a size")
    for size, time in zip(sizes, times, strict=True):
        problem = _no_count(row) or _no_number(dict(zip(PACKED, (size, time), strict=True)))
        yield CurvePoint(_number(size), _number(time), in_place, problem, line)


def _no_count(row: Mapping[str, str]) -> str | None:
    """Why the ranks of a row, or its nodes where they are told, cannot be; None: they can."""
    for column, wanted, may_lack in (("gpus", "ranks", False), ("nodes", "nodes", True)):
        text = row.get(column, "")
        if _count(text) is None and not (may_lack and not text):
            shown = f"is {text[:20]!r}" if text else "is empty"
            return f"no count that can be: {column} {shown}; write a whole number of {wanted}, such as 8"
    return None


def _no_number(texts: Mapping[str, str]) -> str | None:
    """Why the cells of a size and a time cannot be, with the cell and what to write; None: they can."""
    (size, size_text), (time, time_text) = texts.items()
    what = unusable(_number(size_text), _number(time_text))
    if what is None:
        return None
    wrong = what == NO_SIZE
    column, text = (size, size_text) if wrong else (time, time_text)
    shown = f"is {text[:20]!r}" if text else "is empty"
    wanted = "a number of bytes from 1 to 2^50, such as 1048576" if wrong else "microseconds above 0, such as 35.2"
    return f"{what}: {column} {shown}; write {wanted}"


def unusable(size: float, time: float) -> str | None:
    """Why a size in bytes and a time in us cannot be; None: they can."""
    if not 0 < size <= LARGEST:
        return NO_SIZE
    return None if TIMES[0] <= time <= TIMES[1] else NO_TIME


def _rate_clash(size: float, time_us: float, printed: str) -> str | None:
    """The importers' rule: size / time against the printed rate, beyond 3 % and half a unit of its last decimal."""
    rate = _number(printed)
    if not math.isfinite(rate) or rate <= 0:
        return None
    decimals = len(printed.partition(".")[2])
    found = size / time_us / 1e3
    if abs(found - rate) <= TOLERANCE * found + 0.5 * 10.0**-decimals:
        return None
    return f"contradicts itself: {found:.3g} GB/s by size and time, {rate:g} printed"


def marked(points: Sequence[CurvePoint]) -> tuple[CurvePoint, ...]:
    """The points with spikes marked: slower than 1.3 times the next larger size, out of place and in place apart."""
    following: dict[int, float] = {}
    for in_place in (False, True):
        side = [(p.size_bytes, i) for i, p in enumerate(points) if p.in_place == in_place and p.problem is None]
        side.sort()
        for (size, index), (larger, after) in pairwise(side):
            if larger > size:
                following[index] = points[after].time_us
    return tuple(
        replace(point, problem=f"spike: slower than {SPIKE:g} times the next larger size")
        if index in following and point.time_us > SPIKE * following[index]
        else point
        for index, point in enumerate(points)
    )
