"""Whether a table is whole: sizes that lack, runs that ended early, averages that do not follow from the rows."""

import re
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from traincast.calibration.importers.banner import Sweep
from traincast.calibration.importers.lines import Line
from traincast.calibration.importers.rows import Row
from traincast.calibration.printed import printable
from traincast.calibration.records import Problem

FAILURE: Final = re.compile(
    r"Test (?:NCCL|CUDA) failure|Test failure|srun: error|slurmstepd: error|Segmentation fault|MPI_ABORT|"
    r"out of memory|NCCL WARN .*(?:error|fail|Timeout)|DUE TO TIME LIMIT|unhandled (?:system|cuda) error|"
    r"command not found|No such file or directory|mpirun (?:was unable|detected|noticed)",
    re.IGNORECASE,
)
_HOST: Final = re.compile(r"((?:srun|slurmstepd): error: )\S+: ", re.IGNORECASE)
_AVERAGE: Final = re.compile(r"Avg bus bandwidth\s*:\s*([\d.eE+-]+)")
_OUT_OF_BOUNDS: Final = re.compile(r"Out of bounds values\s*:\s*(\d{1,18})\s+FAILED")
_SHOWN: Final = 6
_MOST: Final = 64


def sweep_problems(
    rows: Sequence[Row],
    sizes: Sequence[tuple[int, int]],
    behind: Sequence[Line],
    sweep: Sweep | None,
    complete: bool,
) -> list[Problem]:
    """Notes on a table's missing sizes and on how it ended.

    `sizes` are line and size of all its rows, used or not; `behind` the lines after its last row; `complete`
    says that every row was read, so that the average at its foot must follow.
    """
    positive = sorted({size for _, size in sizes if size > 0})
    last = sizes[-1][0] if sizes else 0
    gaps = _gaps(positive, sweep)
    notes = [Problem(last, f"sizes between {low} and {high} are missing", "note") for low, high in gaps]
    unmeasured = _unmeasured(positive, sweep)
    failure = next((line for line in behind if FAILURE.search(line.raw)), None)
    lacking = f"{_listed(unmeasured)} not measured" if unmeasured else ""
    if failure is not None:
        what = f"the run failed here: {failure_text(failure)}"
        notes.append(Problem(failure.number, f"{what}{'; ' if lacking else ''}{lacking}", "note"))
    elif unmeasured:
        notes.append(Problem(last, f"the table is incomplete: {lacking}", "note"))
    return notes + _foot(rows, behind, complete and not notes)


def _gaps(sizes: Sequence[int], sweep: Sweep | None) -> list[tuple[int, int]]:
    """Neighbouring sizes with at least one size between them, where the steps are one factor: that of the
    sweep, or that of most of them."""
    ratios = Counter(high // low for low, high in pairwise(sizes) if high % low == 0)
    factor, times = ratios.most_common(1)[0] if ratios else (0, 0)
    if sweep is not None and sweep.factor:
        factor, times = sweep.step, len(sizes)
    if factor < 2 or times * 2 <= len(sizes) - 1:
        return []
    return [(low, high) for low, high in pairwise(sizes) if high >= low * factor * factor]


def _unmeasured(sizes: Sequence[int], sweep: Sweep | None) -> list[int]:
    """Sizes of the sweep beyond the largest in the table."""
    if sweep is None or not sizes or sweep.step < 1 or (sweep.factor and sweep.step < 2):
        return []
    found: list[int] = []
    size = sizes[-1]
    while len(found) < _MOST:
        size = size * sweep.step if sweep.factor else size + sweep.step
        if size > sweep.maximum:
            break
        found.append(size)
    return found


def _foot(rows: Sequence[Row], behind: Sequence[Line], complete: bool) -> list[Problem]:
    """Notes on the table's foot: wrong values, an average that is not that of the rows."""
    notes = []
    for line in behind:
        failed = _OUT_OF_BOUNDS.search(line.text)
        if failed:
            notes.append(Problem(line.number, f"{failed.group(1)} values were out of bounds (FAILED)", "note"))
        stated = _AVERAGE.search(line.text)
        if stated and complete and not _follows(rows, stated.group(1)):
            what = f"the average at the foot ({stated.group(1)}) is not that of the rows: some lack or were changed"
            notes.append(Problem(line.number, what, "note"))
    return notes


def _follows(rows: Sequence[Row], stated: str) -> bool:
    try:
        average = float(stated)
    except ValueError:
        return True
    figures = [side.busbw.value for row in rows for side in (row.out, row.inside) if side and side.busbw]
    mean = sum(figures) / len(figures) if figures else average
    return abs(mean - average) <= 0.01 + 0.005 * abs(average)


def failure_text(line: Line) -> str:
    """What a line of failure says, without the host in front and without the paths in it."""
    found = FAILURE.search(line.raw)
    words = _HOST.sub(r"\1", line.raw[found.start() if found else 0 :]).split()
    return printable(" ".join(word.rsplit("/", 1)[-1] for word in words))


def _listed(sizes: Sequence[int]) -> str:
    if len(sizes) == 1:
        return f"{sizes[0]} was"
    if len(sizes) > _SHOWN:
        return f"{', '.join(map(str, sizes[:_SHOWN]))} and {len(sizes) - _SHOWN} more were"
    return f"{', '.join(map(str, sizes[:-1]))} and {sizes[-1]} were"
