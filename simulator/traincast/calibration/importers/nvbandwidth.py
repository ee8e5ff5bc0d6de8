"""nvbandwidth: copies between host and devices, as text and as JSON; one record a cell of a matrix."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from traincast.calibration.importers.lines import Line
from traincast.calibration.printed import Printed, parse_printed, printable
from traincast.calibration.records import Imported, Problem, Record, RunInfo, Scalar

_RUNNING: Final = re.compile(r"Running ([a-z][a-z0-9_]*)\.")
_TITLE: Final = re.compile(r"\(row\).*\(column\).*\((GB/s|ns|us)\)|(?:bandwidth|latency).*\((GB/s|ns|us)\)")
_SUM: Final = re.compile(r"SUM ([a-z][a-z0-9_]*) ([\d.]+)")
_VERSION: Final = re.compile(r"nvbandwidth Version: (\S+)")
_DRIVER: Final = re.compile(r"^Driver Version: ([\d.]+)")
_CUDA: Final = re.compile(r"CUDA Runtime Version: (\d{4,6})")
_DEVICE: Final = re.compile(r"Device \d+: ([^(]+?)\s*(?:\(|$)")
_WAIVED: Final = "Waived"
_MOST_CELLS: Final = 1_000_000


def import_nvbandwidth(lines: Sequence[Line], given_op: str | None = None) -> Imported:
    """Records of all tests in the text that nvbandwidth prints; `given_op` says nothing here."""
    run = _run_info(lines)
    result = Imported()
    index = 0
    while index < len(lines):
        test = _RUNNING.search(lines[index].text)
        if lines[index].text.strip().startswith(_WAIVED) and result.tables:
            note = Problem(lines[index].number, "a test was waived: this machine cannot run it", "note")
            result = result.joined(Imported((), (note,)))
        index += 1
        if test is None:
            continue
        found, index = _test(lines, index, test.group(1), replace(run, index=result.tables))
        result = result.joined(found)
    return result


def import_nvbandwidth_json(document: Mapping[str, Any], line: int) -> Imported:
    """Records of the object that nvbandwidth -j prints; all of them have the object's line."""
    version, driver = str(document.get("version", "")), str(document.get("Driver Version", ""))
    run = RunInfo(
        tool=printable(f"nvbandwidth {version}", 40),
        driver=driver if re.fullmatch(r"[\d.]{3,20}", driver) else None,
        cuda=_cuda(str(document.get("CUDA Runtime Version", ""))),
    )
    result = Imported()
    tests = document.get("testcases")
    for test in tests if isinstance(tests, list) else []:
        if not isinstance(test, dict):
            continue
        name, status = printable(str(test.get("name", "")), 60), printable(str(test.get("status", "")), 40)
        matrix = test.get("bandwidth_matrix")
        if not isinstance(matrix, list) or not matrix:
            note = Problem(line, f"{name}: {status or 'no matrix'}, nothing measured", "note")
            result = result.joined(Imported((), (note,)))
            continue
        rows = [(line, [str(cell) for cell in row]) for row in matrix if isinstance(row, list)]
        title = str(test.get("bandwidth_description", "(GB/s)"))
        unit = next((unit for unit in ("ns", "us") if f"({unit})" in title), "GB/s")
        records = _records(name, unit, rows, replace(run, index=result.tables))
        lacking = () if records else (Problem(line, f"{name}: no figures in its matrix"),)
        result = result.joined(Imported(tuple(records), lacking, 1))
    return result


def _test(lines: Sequence[Line], index: int, name: str, run: RunInfo) -> tuple[Imported, int]:
    """The matrix of one test that begins at `index`, and the index of the line after it."""
    title = next((at for at in range(index, min(index + 3, len(lines))) if _TITLE.search(lines[at].text)), None)
    if title is None:
        return Imported(), index
    found = _TITLE.search(lines[title].text)
    unit = next(group for group in found.groups() if group) if found else "GB/s"
    rows: list[tuple[int, list[str]]] = []
    problems: list[Problem] = []
    width = None
    stated: tuple[int, str] | None = None
    at = title + 1
    while at < len(lines) and stated is None:
        words = lines[at].text.split()
        total = _SUM.search(lines[at].text)
        if total is not None:
            stated = lines[at].number, total.group(2)
        elif _RUNNING.search(lines[at].text):
            break
        elif width is None and words and all(word.isdecimal() for word in words):
            width = len(words)
        elif width is not None and len(words) == width + 1 and words[0].isdecimal():
            rows.append((lines[at].number, words[1:]))
        elif words and width is not None:
            problems.append(Problem(lines[at].number, f"not a row of {width} figures of {name}; dropped"))
        at += 1
    records = _records(name, unit, rows, run)
    if stated is not None and unit == "GB/s" and not _sums(rows, stated[1]):
        what = f"the sum of {name} contradicts its matrix ({stated[1]}): the test is not used"
        return Imported((), (*problems, Problem(stated[0], what)), 1), at
    if not records:
        problems.append(Problem(lines[title].number, f"{name}: no figures in its matrix"))
    return Imported(tuple(records), tuple(problems), 1), at


def _records(name: str, unit: str, rows: Sequence[tuple[int, Sequence[str]]], run: RunInfo) -> list[Record]:
    """A record for each measured cell; the diagonal between devices (N/A or 0) is none."""
    records: list[Record] = []
    for row, (line, cells) in enumerate(rows):
        for column, cell in enumerate(cells):
            figure = parse_printed(cell)
            if figure is None or figure.value <= 0 or len(records) >= _MOST_CELLS:
                continue
            params: tuple[tuple[str, Scalar], ...] = (("column", column), ("row", row))
            if unit == "GB/s":
                made = Record(name, run, line, "copy", bandwidth_bytes_per_s=figure.value * 1e9, params=params)
            else:
                time = figure.value * (1e-3 if unit == "ns" else 1.0)
                made = Record(name, run, line, "copy", time_us=time, params=params)
            records.append(made)
    return records


def _sums(rows: Sequence[tuple[int, Sequence[str]]], stated: str) -> bool:
    figures = [figure for _, cells in rows for cell in cells if (figure := parse_printed(cell)) is not None]
    total = parse_printed(stated) or Printed(math.nan)
    allowed = sum(figure.half for figure in figures) + total.half + 1e-6 * abs(total.value)
    return abs(sum(figure.value for figure in figures) - total.value) <= allowed


def _run_info(lines: Sequence[Line]) -> RunInfo:
    texts = [line.text for line in lines[:200]]
    version = next((found.group(1) for text in texts if (found := _VERSION.search(text))), "")
    driver = next((found.group(1) for text in texts if (found := _DRIVER.search(text))), None)
    cuda = next((found.group(1) for text in texts if (found := _CUDA.search(text))), "")
    gpus = sorted({found.group(1) for text in texts if (found := _DEVICE.search(text))})
    return RunInfo(tool=f"nvbandwidth {version}".strip(), driver=driver, cuda=_cuda(cuda), gpu=" + ".join(gpus) or None)


def _cuda(code: str) -> str | None:
    """``12.4`` of CUDA's version code 12040."""
    if not re.fullmatch(r"[0-9]{4,6}", code):
        return None
    return f"{int(code) // 1000}.{int(code) % 1000 // 10}"
