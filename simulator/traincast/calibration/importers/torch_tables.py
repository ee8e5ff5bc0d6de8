"""Collectives measured from torch: Markdown tables with KiB and GBps, and blocks of durations rank by rank."""

import re
from collections.abc import Sequence
from typing import Final

from traincast.calibration.importers.banner import environment_of
from traincast.calibration.importers.judge import judge_tables
from traincast.calibration.importers.lines import Line
from traincast.calibration.importers.rows import Evidence, RawTable, Row, Side
from traincast.calibration.ops import busbw_factor, op_name
from traincast.calibration.printed import Printed, parse_payload, parse_printed, parse_scaled, printable
from traincast.calibration.records import Imported, Problem, RunInfo

_OVER: Final = re.compile(r"\b(?:of|bandwidth of|for) ([A-Za-z_-]{4,30}) over (\d{1,7}) ranks")
_SOFTWARE: Final = re.compile(r"\b(torch|cuda|nccl)[`=\s(:]+([\d][\w.+]*|\(\d+(?:, \d+)*\))")
_RULE: Final = re.compile(r"[|:\s-]+")
_COLUMNS: Final = {
    "payload": "size",
    "size": "size",
    "message size": "size",
    "busbw": "busbw",
    "algbw": "algbw",
    "time": "time",
    "latency": "time",
    "latency median": "time",
}
_DATA_SIZE: Final = re.compile(r"(\d{1,6}) data size: ([\d.]{1,12}) GB")
_DURATION: Final = re.compile(r"duration: ([\d.]{1,16}) sec")
_BUSBW: Final = re.compile(r"busbw: ([\d.]{1,16})\s+Gbps")


def import_torch(lines: Sequence[Line], given_op: str | None = None) -> Imported:
    """Records of all tables of torch benchmarks in the lines of a file."""
    tables, problems = _markdown(lines)
    block, worse = _durations(lines)
    if not tables and not block and not problems and not worse:
        return Imported()
    judged = judge_tables([*tables, *block], given_op)
    return Imported((), (*problems, *worse), 0 if judged.tables else 1).joined(judged)


def _markdown(lines: Sequence[Line]) -> tuple[list[RawTable], list[Problem]]:
    """Tables between bars with a size and a bandwidth column, and the rows of theirs that could not be read."""
    tables: list[RawTable] = []
    problems: list[Problem] = []
    told: tuple[str | None, int | None] = (None, None)
    index = 0
    while index < len(lines):
        over = _OVER.search(lines[index].text)
        if over:
            told = op_name(over.group(1)), int(over.group(2))
        names = _header(lines[index].raw)
        index += 1
        if names is None:
            continue
        first = index
        rows: list[Row] = []
        while index < len(lines) and lines[index].raw.lstrip(" >").startswith("|"):
            found = _row(lines[index], names)
            if isinstance(found, Row):
                rows.append(found)
            elif found is not None:
                problems.append(found)
            index += 1
        if rows:
            evidence = Evidence(told_op=told[0], told_ranks=told[1])
            tables.append(RawTable(lines[first].number, tuple(rows), evidence, _software(lines)))
    return tables, problems


def _header(raw: str) -> tuple[str, ...] | None:
    if raw.count("|") < 2:
        return None
    names = tuple(_COLUMNS.get(cell.strip().lower(), "") for cell in _bars(raw))
    return names if names.count("size") == 1 and {"busbw", "algbw"} & set(names) else None


def _row(line: Line, names: Sequence[str]) -> Row | Problem | None:
    cells = _bars(line.raw)
    if _RULE.fullmatch(line.raw.strip(" >")):
        return None
    if len(cells) != len(names):
        return Problem(line.number, f"{len(cells)} cells under {len(names)} columns; row dropped")
    named = {name: cell for name, cell in zip(names, cells, strict=True) if name}
    size = parse_payload(named["size"])
    if size is None or size > 1 << 60:
        return Problem(line.number, f"size {printable(named['size'], 30)!r} is no number of bytes; row dropped")
    figures = {
        "algbw": parse_scaled(named.get("algbw", ""), "bandwidth", "GB/s"),
        "busbw": parse_scaled(named.get("busbw", ""), "bandwidth", "GB/s"),
        "time": parse_scaled(named.get("time", ""), "time", "us"),
    }
    lacking = [name for name in named if name in figures and figures[name] is None and named[name].strip()]
    if lacking or not any(figures.values()):
        return Problem(line.number, f"{' and '.join(lacking) or 'every figure'} cannot be read; row dropped")
    return Row(line.number, size, Side(figures["time"], figures["algbw"], figures["busbw"]))


def _bars(raw: str) -> list[str]:
    return raw.strip().lstrip("> ").strip().strip("|").split("|")


def _software(lines: Sequence[Line]) -> RunInfo:
    whole = "\n".join(line.text for line in lines)
    found = dict(_SOFTWARE.findall(whole))
    nccl = found.get("nccl")
    return RunInfo(
        tool="torch",
        torch=found.get("torch"),
        cuda=found.get("cuda"),
        nccl=nccl.strip("()").replace(", ", ".") if nccl else None,
        environment=environment_of(whole),
    )


def _durations(lines: Sequence[Line]) -> tuple[list[RawTable], list[Problem]]:
    """Blocks of `duration`, `busbw` of every rank and trial: one row a trial, the median rank's time.

    The ranks' lines mix, so a trial is as many durations as there are ranks. Their `algo throughput` counts
    sent and received bytes and is left alone.
    """
    sizes = {int(one): text for line in lines for one, text in _DATA_SIZE.findall(line.raw)}
    durations = [(line.number, float(text)) for line in lines for text in _numbers(_DURATION, line.raw)]
    busbws = [text for line in lines for text in _numbers(_BUSBW, line.raw)]
    ranks = len(sizes)
    if not sizes or not durations:
        return [], []
    size = parse_printed(next(iter(sizes.values())))
    at = durations[0][0]
    if size is None or len(set(sizes.values())) > 1 or sorted(sizes) != list(range(ranks)):
        return [], [Problem(at, "the ranks' data sizes are not all there or differ; durations not used", "refused")]
    problems = []
    if len(durations) % ranks:
        problems.append(Problem(durations[-1][0], f"the last trial lacks durations of some of {ranks} ranks; dropped"))
    size_bytes = round(size.value * 1e9)
    factor = busbw_factor("all_reduce", ranks)
    rows = []
    for start in range(0, len(durations) - ranks + 1, ranks):
        trial = sorted(seconds for _, seconds in durations[start : start + ranks])
        time = Printed(trial[ranks // 2] * 1e6, 50.0)
        printed = sorted(float(text) for text in busbws[start : start + ranks])
        busbw = Printed(printed[len(printed) // 2] / 8, 0.0) if printed and factor else None
        rows.append(Row(durations[start][0], size_bytes, Side(time, None, busbw), dtype="float", redop="sum"))
    evidence = Evidence(told_op="all_reduce", told_ranks=ranks)
    return [RawTable(at, tuple(rows), evidence, _software(lines))], problems


def _numbers(pattern: re.Pattern[str], text: str) -> list[str]:
    return [found for found in pattern.findall(text) if parse_printed(found) is not None]
