"""Matrix products: tables with columns m, n, k and a rate or a time, and the log of the MAMF finder."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from traincast.calibration.importers.lines import Line
from traincast.calibration.printed import Printed, parse_printed, printable
from traincast.calibration.records import Imported, Problem, Record, RunInfo, Scalar

COLUMNS: Final = (
    "columns m, n, k (or MxNxK) and a rate (GFLOPS, TFLOPS, PFLOPS) or a time with its unit (time (us), ns or ms); "
    "batch, dtype and gpu where they are known"
)
"""What a table of matrix products has."""

TOLERANCE: Final = 0.03
_AT: Final = re.compile(
    r"(?<![\d.])([\d.]{1,16})\s{0,4}(?:\([a-z]{1,16}\)\s{0,4})?TFLOPS\s*@\s*(\d{1,8})x(\d{1,8})x(\d{1,8})(?:\s*\((MxNxK|MxKxN)\))?"
)
_SHAPE: Final = re.compile(r"(\d{1,8})x(\d{1,8})x(\d{1,8})")
_DTYPE: Final = re.compile(r"(?:\*\* Dtype:\s*(?:torch\.)?(\w+)|--dtype[= ](\w+))")
_CAPTION: Final = re.compile(r"\b(FP8|FP16|BF16|TF32|FP32|FP64|INT8)\b")
_RATE: Final = re.compile(r"\b([TGP])FLOP/?S?\b|\b([TGP])FLOPS\b", re.IGNORECASE)
_TIME: Final = re.compile(r"^(?:time|latency|duration|elapsed)?\s*[\[(]?(ns|us|ms)[\])]?$|time.*\((ns|us|ms)\)")
_SCALES: Final = {"g": 1e9, "t": 1e12, "p": 1e15}
_MICROSECONDS: Final = {"ns": 1e-3, "us": 1.0, "ms": 1e3}
_DTYPES: Final = {"float16": "fp16", "half": "fp16", "bfloat16": "bf16", "float32": "fp32", "float8_e4m3fn": "fp8"}
_AROUND: Final = 6


def import_gemm(lines: Sequence[Line], given_op: str | None = None) -> Imported:
    """Records of all tables of matrix products in the lines of a file; `given_op` says nothing here."""
    result = _finder(lines)
    index = 0
    while index < len(lines):
        columns = _header(lines[index].raw)
        lacking = _lacking(lines[index]) if columns is None else None
        if lacking is not None:
            result = result.joined(Imported((), (lacking,), 1))
        index += 1
        if columns is not None:
            found, index = _table(lines, index, columns, RunInfo(index=result.tables, tool="gemm"))
            result = result.joined(found)
    return result


def _finder(lines: Sequence[Line]) -> Imported:
    """Rates that the MAMF finder prints with their shapes; the best is printed again and counts once."""
    records: list[Record] = []
    seen: set[tuple[object, ...]] = set()
    dtype = next((found.group(1) or found.group(2) for line in lines if (found := _DTYPE.search(line.text))), None)
    run = RunInfo(tool="mamf-finder")
    for line in lines:
        found = _AT.search(line.text)
        rate = parse_printed(found.group(1)) if found else None
        if found is None or rate is None or rate.value <= 0:
            continue
        m, second, third = (int(text) for text in found.group(2, 3, 4))
        n, k = (third, second) if found.group(5) == "MxKxN" else (second, third)
        key = (m, n, k, rate.value)
        if key not in seen and min(m, n, k) > 0:
            seen.add(key)
            records.append(_record(line.number, {"m": m, "n": n, "k": k}, rate.times(1e12), None, run))
    return Imported(tuple(replace(one, dtype=_dtype(dtype)) for one in records), (), 1 if records else 0)


def _header(raw: str) -> tuple[str, ...] | None:
    """Names of the columns: m, n, k, batch, shape, dtype, gpu, a rate (`rate:1e12`) or a time (`time:1.0`)."""
    names = tuple(_column(cell) for cell in _cells(raw))
    shaped = {"m", "n", "k"} <= set(names) or "shape" in names
    measured = sum(name.startswith(("rate:", "time:")) for name in names)
    return names if shaped and measured else None


def _lacking(line: Line) -> Problem | None:
    """What a line that begins a table of products lacks: their shapes, or what was measured. None: it is no such line.

    A rate alone may head any table; with one or two of m, n and k it is of products.
    """
    names = {_column(cell) for cell in _cells(line.raw)}
    shape = {"m", "n", "k"} & names
    if not (shape == {"m", "n", "k"} or "shape" in names):
        if len(shape) < 2:
            return None
        lost = ", ".join(sorted({"m", "n", "k"} - shape))
        return Problem(line.number, f"a table of matrix products without {lost}: it needs {COLUMNS}", "refused")
    return Problem(line.number, f"a table of matrix products without a rate or a time: it needs {COLUMNS}", "refused")


def _column(cell: str) -> str:
    text = cell.strip().strip("*`").strip()
    lower = text.lower()
    if lower in ("m", "n", "k", "batch", "dtype"):
        return lower
    if lower in ("precision", "data type"):
        return "dtype"
    if lower in ("gpu", "accelerator"):
        return "gpu"
    if "mxnxk" in lower:
        return "shape"
    rate, time = _RATE.search(text), _TIME.search(lower)
    if rate or lower == "mamf":
        letter = (rate.group(1) or rate.group(2)).lower() if rate else "t"
        return f"rate:{_SCALES[letter]!r}"
    return f"time:{_MICROSECONDS[time.group(1) or time.group(2)]!r}" if time else ""


def _table(lines: Sequence[Line], start: int, names: Sequence[str], run: RunInfo) -> tuple[Imported, int]:
    """The rows below a header, and the index of the line after them."""
    records: list[Record] = []
    problems: list[Problem] = []
    around = " ".join(line.text for line in lines[max(0, start - _AROUND) : start])
    caption = _CAPTION.search(around)
    index = start
    while index < len(lines):
        raw = lines[index].raw
        cells = _cells(raw)
        if len(cells) < 3:
            break
        if not re.fullmatch(r"[\s|:,\\-]*", raw):
            found = _row(lines[index].number, names, cells, run)
            if isinstance(found, Problem):
                problems.append(found)
            else:
                named = caption.group(1).lower() if caption else None
                records.append(replace(found, dtype=found.dtype or named))
        index += 1
    return Imported(tuple(records), tuple(problems), 1 if records or problems else 0), index


def _row(line: int, names: Sequence[str], cells: Sequence[str], run: RunInfo) -> Record | Problem:
    if len(cells) != len(names):
        return Problem(line, f"{len(cells)} cells under {len(names)} columns; row dropped")
    shape: dict[str, int] = {}
    rate: Printed | None = None
    time: Printed | None = None
    for name, cell in zip(names, cells, strict=True):
        text = cell.strip().strip("*`").strip()
        figure = parse_printed(text)
        if name == "shape" and (found := _SHAPE.search(text)):
            shape |= dict(zip("mnk", map(int, found.groups()), strict=True))
        elif name in ("m", "n", "k", "batch") and re.fullmatch(r"[0-9]{1,9}", text):
            shape[name] = int(text)
        elif name.startswith("rate:") and figure and rate is None:
            rate = figure.times(float(name[5:]))
        elif name.startswith("time:") and figure and time is None:
            time = figure.times(float(name[5:]))
    if not {"m", "n", "k"} <= set(shape) or min(shape.values()) <= 0:
        return Problem(line, "no shape m, n, k in this row; dropped")
    if (rate is None or rate.value <= 0) and (time is None or time.value <= 0):
        return Problem(line, "neither a rate nor a time in this row; dropped")
    words = {name: cell.strip() for name, cell in zip(names, cells, strict=True)}
    record = _record(line, shape, rate, time, replace(run, gpu=printable(words.get("gpu", ""), 60) or None))
    clash = _clash(shape, rate, time)
    return Problem(line, clash) if clash else replace(record, dtype=_dtype(words.get("dtype")))


def _record(line: int, shape: Mapping[str, int], rate: Printed | None, time: Printed | None, run: RunInfo) -> Record:
    flops = 2.0 * shape["m"] * shape["n"] * shape["k"] * shape.get("batch", 1)
    seconds = time.value * 1e-6 if time else flops / rate.value if rate else 0.0
    params: tuple[tuple[str, Scalar], ...] = tuple(sorted(shape.items()))
    return Record(
        "gemm",
        run,
        line,
        "kernel",
        time_us=time.value if time else seconds * 1e6,
        flops_per_s=rate.value if rate else flops / seconds if seconds else None,
        params=params,
    )


def _clash(shape: Mapping[str, int], rate: Printed | None, time: Printed | None) -> str | None:
    """What speaks against rate = 2 m n k / time (3 % and the printed digits allowed), or None."""
    if rate is None or time is None or time.low <= 0:
        return None
    flops = 2.0 * shape["m"] * shape["n"] * shape["k"] * shape.get("batch", 1)
    low, high = flops / (time.high * 1e-6), flops / (time.low * 1e-6)
    if low <= rate.high * (1 + TOLERANCE) and high * (1 + TOLERANCE) >= rate.low:
        return None
    return f"the row contradicts itself: 2 m n k / time is {low / 1e12:.4g} TFLOP/s, printed {rate.value / 1e12:.4g}"


def _dtype(text: str | None) -> str | None:
    name = text.strip().lower().removeprefix("torch.") if text else ""
    return _DTYPES.get(name, printable(name, 20)) or None


def _cells(raw: str) -> list[str]:
    """The cells of a line between bars, or between commas."""
    text = raw.strip()
    if text.startswith("|"):
        return text.strip("|").split("|")
    return text.split(",") if "," in text else []
