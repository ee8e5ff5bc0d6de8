"""The same measurements named twice, as a file or as rows of two files: they are counted once, and that is said."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from traincast.calibration.curves import Curve, CurvePoint
from traincast.calibration.profile_file import counted, names_text
from traincast.calibration.records import Record

_SAME: Final = 0.5
"""Share of the rows of a curve, or of the kernels of a file, from which on equal times are no chance: two runs of one
machine agree in a few."""


def distinct_files(paths: Sequence[Path]) -> tuple[list[Path], list[str]]:
    """The files without those that hold just what one before them does, and a remark for each of these."""
    first: dict[str, Path] = {}
    kept: list[Path] = []
    remarks: list[str] = []
    for path in paths:
        try:
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
        except OSError:  # its reader says what is wrong with it
            kept.append(path)
            continue
        if digest not in first:
            first[digest] = path
            kept.append(path)
        elif path.resolve() == first[digest].resolve():
            remarks.append(f"{path.name} is named twice: counted once")
        else:
            remarks.append(f"{path.name} holds the same as {first[digest].name}: counted once")
    return kept, remarks


@dataclass(eq=False)
class Counted:
    """The rows that were counted so far, with the file that each is from; `remarks` on those that come again."""

    rows: dict[tuple[object, ...], str] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)

    def new_curves(self, file: str, curves: Iterable[Curve], table: bool) -> list[Curve]:
        """Curves of a file without rows that were counted before; `table`: a CSV of curves, where a row that stands
        there twice is one."""
        kept = []
        for curve in curves:
            points = self._once(curve, file) if table else list(curve.points)
            points = self._new(curve, points, file)
            if points or not curve.points:
                kept.append(curve if len(points) == len(curve.points) else replace(curve, points=tuple(points)))
        return kept

    def new_kernels(self, file: str, kernels: Sequence[Record]) -> list[Record]:
        """Kernels of a file without those that were counted before."""
        again = [one for one in kernels if self.rows.get(_kernel(one), file) != file]
        for one in kernels:
            self.rows.setdefault(_kernel(one), file)
        if not again or len(again) < _SAME * len(kernels):
            return list(kernels)
        other = names_text(sorted({self.rows[_kernel(one)] for one in again}))
        self.remarks.append(f"{counted(len(again), 'kernel')} of {file} as in {other}: counted once")
        lost = {id(one) for one in again}
        return [one for one in kernels if id(one) not in lost]

    def _once(self, curve: Curve, file: str) -> list[CurvePoint]:
        """The rows of a curve without those that stand in its file before."""
        kept: dict[object, CurvePoint] = {}
        for point in curve.points:
            kept.setdefault((point.size_bytes, point.time_us, point.in_place), point)
        lost = len(curve.points) - len(kept)
        if lost:
            self.remarks.append(f"{counted(lost, 'row')} of {curve.id} twice in {file}: counted once")
        return list(kept.values())

    def _new(self, curve: Curve, points: list[CurvePoint], file: str) -> list[CurvePoint]:
        again = [point for point in points if self.rows.get(_row(curve, point), file) != file]
        named = [point for point in again if (curve.id, self.rows[_row(curve, point)]) in self.rows]
        others = sorted({self.rows[_row(curve, point)] for point in again})
        for point in points:
            self.rows.setdefault(_row(curve, point), file)
        self.rows[curve.id, file] = file
        lost = again if len(again) >= _SAME * len(points) else named
        if not lost:
            return points
        self.remarks.append(f"{counted(len(lost), 'row')} of {curve.id} as in {names_text(others)}: counted once")
        return [point for point in points if not any(point is one for one in lost)]


def _row(curve: Curve, point: CurvePoint) -> tuple[object, ...]:
    """What makes two rows the same: hardware, software, collective, size, side and time."""
    where = (curve.gpu, curve.net, curve.nodes, curve.ranks, curve.nccl, curve.launch, curve.node_gpus, curve.groups)
    what = (curve.op, curve.algo, curve.proto, curve.dtype)
    return (*where, *what, point.size_bytes, point.time_us, point.in_place)


def _kernel(one: Record) -> tuple[object, ...]:
    return (one.run.gpu, one.kind, one.op, one.dtype, one.params, one.size_bytes, one.time_us, one.flops_per_s)
