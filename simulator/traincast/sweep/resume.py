"""Rows of a sweep that was interrupted, from the file that it wrote."""

import csv
import json
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from traincast.errors import DataError, TraincastError
from traincast.sweep.evaluate import evaluate_shapes
from traincast.sweep.outcome import SweepRow
from traincast.sweep.shapes import Shape, schedule_of, sets_of
from traincast.sweep.wording import NUMBERED

if TYPE_CHECKING:
    from traincast.scenario import Scenario

_ABOVE: Final = "borderline, above"
_GIB: Final = 2.0**30
_ANEW: Final = "leave --resume out, or name another file with -o"


def read_rows(path: Path, scenario: "Scenario", shapes: Sequence[Shape]) -> dict[Shape, SweepRow]:
    """The rows that a .json or .csv file holds of some shapes of a scenario; none where there is no file.

    Two of them are evaluated again. Raises DataError, with the file, where it is no sweep, or not one of this scenario
    by this version: another scenario, or other figures for these two.
    """
    if not path.exists():
        return {}
    found: dict[tuple[Any, ...], SweepRow] = {}
    try:
        for raw in _raw(path.read_text(encoding="utf-8"), scenario):
            row = _row(raw)
            found[_key(row.shape, row.schedule)] = row
    except (KeyError, TypeError, ValueError, AttributeError, OSError) as error:
        what = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise DataError(
            f"not a sweep of this scenario: {what} (row {len(found) + 1})", where=str(path), fix=_ANEW
        ) from error
    wanted = {shape: found.get(_key(shape, schedule_of(scenario, shape))) for shape in shapes}
    _refuse_others(path, found, {_key(shape, schedule_of(scenario, shape)) for shape in shapes})
    known = {shape: _placed(scenario, shape, row) for shape, row in wanted.items() if row is not None}
    _check(path, scenario, known)
    return known


def _refuse_others(path: Path, found: Mapping[tuple[Any, ...], SweepRow], wanted: Set[tuple[Any, ...]]) -> None:
    """Raises DataError where the file has rows of shapes that this sweep does not have: they would be lost in it."""
    others = [row for key, row in found.items() if key not in wanted]
    if not others:
        return
    which = "1 row is" if len(others) == 1 else f"{len(others)} of its {len(found)} rows are"
    message = f"{which} of shapes that this sweep has not, such as {others[0].shape} ({others[0].schedule})"
    fix = f"sweep with the same --axis and --set as it was made with, or {_ANEW}"
    raise DataError(message, where=str(path), fix=fix)


def _raw(text: str, scenario: "Scenario") -> Iterator[Mapping[str, Any]]:
    """Rows with the keys of JSON. Raises ValueError for another scenario."""
    if not text.lstrip().startswith("{"):
        for row in csv.DictReader(text.splitlines()):
            memory_bytes = float(row["memory_gib"]) * _GIB
            verdict, above = row["verdict"].partition(",")[0], row["verdict"] == _ABOVE
            yield {**row, "memory_bytes": memory_bytes, "verdict": verdict, "over_limit": above}
        return
    found = json.loads(text)
    for key, own in (("scenario", scenario.name), ("world", scenario.mesh.world)):
        if found[key] != own:
            raise ValueError(f"{key} is {found[key]} there, {own} here")
    yield from found["shapes"]


def _row(raw: Mapping[str, Any]) -> SweepRow:
    sizes = {axis: int(raw[axis]) for axis in NUMBERED}
    return SweepRow(
        shape=Shape(sizes["tp"], sizes["pp"], sizes["dp"], sizes["vpp"], sizes["microbatch"], sizes["cp"]),
        schedule=str(raw["schedule"]),
        step_time_s=float(raw["step_time_s"]),
        tflops_hardware=float(raw["tflops_hardware"]),
        tflops_model=float(raw["tflops_model"]),
        mfu=_share(raw["mfu"]),
        hfu=_share(raw["hfu"]),
        memory_bytes=float(raw["memory_bytes"]),
        verdict=str(raw["verdict"]),
        over_limit=bool(raw["over_limit"]),
    )


def _share(text: Any) -> float | None:
    return None if text in (None, "") else float(text)


def _key(shape: Shape, schedule: str) -> tuple[Any, ...]:
    return (*shape.sizes.values(), schedule)


def _placed(scenario: "Scenario", shape: Shape, row: SweepRow) -> SweepRow:
    return replace(row, shape=shape, sets=sets_of(scenario, shape))


def _check(path: Path, scenario: "Scenario", known: Mapping[Shape, SweepRow]) -> None:
    """Raises DataError where the fastest or the slowest of the rows is not what comes out now."""
    ranked = sorted(known.values(), key=lambda row: row.rank)
    for row in {one.shape: one for one in (*ranked[:1], *ranked[-1:])}.values():
        try:
            again = evaluate_shapes(scenario, [row.shape]).ranked
        except TraincastError:
            again = ()
        if again != (row,):
            now = f"{again[0].step_time_s:.6g} s" if again else "no step"
            message = f"{row.shape}: {row.step_time_s:.6g} s there, {now} now; the scenario or traincast has changed"
            raise DataError(message, where=str(path), fix=_ANEW)
