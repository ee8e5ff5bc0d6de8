"""Rank files: which GPU each rank runs on, in the forms that launchers and people have.

- JSON: a list of GPU numbers or names (``n3/gpu2``), an object rank -> GPU, or what `traincast mesh` writes
- CSV with a header: ``rank`` and ``gpu`` (number or name), or ``rank``, ``node`` and ``slot``
- text: a host a line (Slurm's arbitrary distribution), ``host:8`` or ``host slots=8`` (host files), or
  ``rank 0=host slot=3`` (Open MPI's rank files)
"""

import csv
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from traincast.errors import ScenarioError
from traincast.scenario.text import read_text, shown

LARGEST_BYTES: Final = 1 << 28
MOST_SLOTS: Final = 1024
_NAME: Final = re.compile(r"(.+)/gpu(\d{1,6})")
_RANK: Final = re.compile(r"rank\s+(\d{1,9})\s*=\s*(\S+)(?:\s+slots?\s*=\s*p?(\d{1,6})\S*)?")
_HOST: Final = re.compile(r"([^\s:=,#]+)(?:(?::|\s+slots\s*=\s*)(\d{1,6}))?(?:\s+max[-_]slots\s*=\s*\d+)?")


@dataclass(frozen=True)
class Seat:
    """Where one rank runs: the number of a GPU, or a node with the GPU's index there (None: its next free one)."""

    where: str
    gpu: int | None = None
    node: str = ""
    slot: int | None = None


def read_rank_file(path: Path) -> tuple[Seat, ...]:
    """The seats of a rank file in order of rank. Raises ScenarioError, with file:line:col where a line is to blame."""
    text, label = read_text(path, LARGEST_BYTES), shown(path)
    first = text.lstrip()[:1]
    if path.suffix.lower() == ".json" or first in ("[", "{"):
        return _from_json(text, label)
    lines = [(f"{label}:{number}:1", line.split("#")[0].strip()) for number, line in enumerate(text.splitlines(), 1)]
    lines = [(where, line) for where, line in lines if line]
    if not lines:
        raise ScenarioError("names no rank", where=label, fix="write a host or a GPU a line")
    names = [name.strip().lower() for name in lines[0][1].split(",")]
    return _from_csv(lines, names) if "rank" in names else _from_lines(lines)


def seat_of(value: object, where: str) -> Seat:
    """A seat by a GPU's number, or by its name such as ``n3/gpu2``. Raises ScenarioError for anything else."""
    if type(value) is int and value >= 0:
        return Seat(where, gpu=value)
    if isinstance(value, str) and value.strip().isdecimal():
        return Seat(where, gpu=int(value))
    found = _NAME.fullmatch(value.strip()) if isinstance(value, str) else None
    if found is None:
        raise ScenarioError(f"{value!r} is no GPU", where=where, fix="write its number from 0, or a name like n3/gpu2")
    return Seat(where, node=found[1], slot=int(found[2]))


def numbered(seats: Iterable[tuple[int, Seat]], label: str) -> tuple[Seat, ...]:
    """Seats in order of rank. Raises ScenarioError unless the ranks are 0 to their number, each once."""
    found: dict[int, Seat] = {}
    for rank, seat in seats:
        if rank in found:
            raise ScenarioError(f"rank {rank} is there twice", where=seat.where, fix="give each rank one line")
        found[rank] = seat
    missing = next((rank for rank in range(len(found)) if rank not in found), None)
    if missing is not None:
        raise ScenarioError(f"rank {missing} is missing", where=label, fix=f"name ranks 0 to {len(found) - 1}")
    return tuple(found[rank] for rank in range(len(found)))


def _from_json(text: str, label: str) -> tuple[Seat, ...]:
    try:
        data: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        at = f":{error.lineno}:{error.colno}" if isinstance(error, json.JSONDecodeError) else ""
        raise ScenarioError("is not JSON", where=f"{label}{at}", fix="mend it there") from error
    if isinstance(data, Mapping) and "ranks" in data and isinstance(data["ranks"], Sequence):
        rows = [row if isinstance(row, Mapping) else {} for row in data["ranks"]]
        return numbered(
            ((_rank(row.get("rank"), label), seat_of(row.get("gpu"), label)) for row in rows),
            label,
        )
    if isinstance(data, Mapping) and "placement" in data:
        data = data["placement"]
    if isinstance(data, Mapping):
        return numbered(((_rank(key, label), seat_of(value, label)) for key, value in data.items()), label)
    if isinstance(data, Sequence) and not isinstance(data, str):
        return tuple(seat_of(value, f"{label} (entry {place})") for place, value in enumerate(data))
    raise ScenarioError("holds no list of GPUs", where=label, fix="write [0, 1, 2, ...], or an object rank: GPU")


def _rank(value: object, where: str) -> int:
    if type(value) is int or (isinstance(value, str) and value.strip().isdecimal()):
        return int(value)
    raise ScenarioError(f"{value!r} is no rank", where=where, fix="number ranks from 0")


def _from_csv(lines: Sequence[tuple[str, str]], names: Sequence[str]) -> tuple[Seat, ...]:
    """Rows of rank and gpu, or of rank, node and slot."""
    head = lines[0][0]
    slot = next((name for name in ("slot", "local", "local_rank", "index") if name in names), None)
    if "gpu" not in names and not ("node" in names and slot):
        raise ScenarioError("the header names no GPU", where=head, fix="use columns rank,gpu or rank,node,slot")
    seats = []
    for (where, _), cells in zip(lines[1:], csv.reader(line for _, line in lines[1:]), strict=True):
        if len(cells) != len(names):
            raise ScenarioError(f"{len(cells)} cells, but {len(names)} columns", where=where, fix="fill the row")
        row = dict(zip(names, (cell.strip() for cell in cells), strict=True))
        if "gpu" in row:
            seat = seat_of(row["gpu"], where)
        elif row[str(slot)].isdecimal():
            seat = Seat(where, node=row["node"], slot=int(row[str(slot)]))
        else:
            raise ScenarioError(f"{row[str(slot)]!r} is no slot", where=where, fix="number GPUs of a node from 0")
        seats.append((_rank(row["rank"], where), seat))
    return numbered(seats, head)


def _from_lines(lines: Sequence[tuple[str, str]]) -> tuple[Seat, ...]:
    """Lines of a rank file, or of a host file."""
    if lines[0][1].startswith("rank"):
        seats = []
        for where, line in lines:
            found = _RANK.fullmatch(line)
            if found is None:
                raise ScenarioError(f"{line!r} places no rank", where=where, fix="write rank 0=host slot=3")
            slot = int(found[3]) if found[3] else None
            seats.append((int(found[1]), Seat(where, node=found[2].removeprefix("+"), slot=slot)))
        return numbered(seats, lines[0][0])
    found_seats: list[Seat] = []
    for where, line in lines:
        if line.isdecimal():
            found_seats.append(Seat(where, gpu=int(line)))
            continue
        host = _HOST.fullmatch(line)
        if host is None or int(host[2] or 1) > MOST_SLOTS:
            raise ScenarioError(f"{line!r} names no host", where=where, fix="write a host a line, or host:8")
        found_seats += [Seat(where, node=host[1])] * int(host[2] or 1)
    return tuple(found_seats)
