"""Columns of an nccl-tests table: from its header where there is one, else from what the cells look like."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from traincast.calibration.ops import DTYPE_BYTES, REDOPS
from traincast.calibration.printed import is_cell, parse_count, parse_printed

# spelling in a header -> name used here
_NAMES: Final = {
    "size": "size",
    "count": "count",
    "type": "type",
    "redop": "redop",
    "root": "root",
    "time": "time",
    "cputime": "cputime",
    "algbw": "algbw",
    "busbw": "busbw",
    "error": "wrong",
    "#wrong": "wrong",
    "wrong": "wrong",
    "#bitdiff": "bitdiff",
    "i_min": "i_min",
    "i_max": "i_max",
    "i_p99": "i_p99",
    "i_cv%": "i_cv",
    "timestamp": "timestamp",
    "impl": "impl",
    "algo": "algo",
    "proto": "proto",
    "kernelvariant": "variant",
    "sync": "sync",
    "#channels": "channels",
    "#warps": "warps",
    "netchunksize": "chunk",
}
_HEAD: Final = ("size", "count", "type", "redop", "root")
_WORDS: Final = frozenset({"impl", "algo", "proto", "variant", "sync", "channels", "warps", "chunk"})
_TIMES: Final = frozenset({"time", "cputime"})
_CLOCK: Final = re.compile(r"\d{4}-\d\d-\d\d")
_UNIT: Final = re.compile(r"\((ns|us|ms|s)\)")
_SIDE: Final = ("time", "algbw", "busbw", "wrong")
_SIDES: Final = (
    _SIDE,
    (*_SIDE, "i_min", "i_max", "i_p99", "i_cv"),
    _SIDE[:3],
    (*_SIDE, "bitdiff"),
    (*_SIDE, "bitdiff", "i_min", "i_max", "i_p99", "i_cv"),
)
_TEXT_HEADS: Final = (_HEAD, (*_HEAD[:4],), (*_HEAD[:3], "root"), _HEAD[:3])


@dataclass(frozen=True)
class Fitted:
    """The cells of one row under their columns: the head, and one mapping for each half of the figures."""

    head: dict[str, str]
    sides: tuple[dict[str, str], ...]


def header_columns(text: str) -> tuple[str, ...] | None:
    """The columns that a header line names, or None for any other line."""
    words = text.replace("# wrong", "#wrong").split()
    names = tuple(_NAMES.get(word.lower(), "") for word in words)
    if len(names) < 3 or not all(names) or "size" not in names:
        return None
    return names if _TIMES & set(names) and {"algbw", "busbw"} & set(names) else None


def time_unit(text: str) -> str | None:
    """The unit of the times that a line of units names (``(B) (elements) (us) (GB/s)``), or None."""
    found = _UNIT.search(text)
    return found.group(1) if found and "(B)" in text else None


def starts_like_a_row(words: Sequence[str]) -> bool:
    """Whether a line begins with size, count and element type."""
    return (
        len(words) >= 3
        and parse_count(words[0]) is not None
        and parse_count(words[1]) is not None
        and words[2].lower() in DTYPE_BYTES
    )


def fit_columns(words: Sequence[str], columns: tuple[str, ...] | None) -> Fitted | None:
    """The cells of a row under their columns, or None where they fit no layout.

    Counted from the right: blank cells (a redop of all-to-all, the in-place half) lack on the left or in the
    middle, never in the numbers that stand.
    """
    kept = _without_clock(words)
    for layout in _layouts(columns):
        if len(layout) == len(kept) and _valid(layout, kept):
            return _split(layout, kept)
    return None


def _without_clock(words: Sequence[str]) -> tuple[str, ...]:
    """The cells without date and time at the end."""
    if len(words) > 2 and _CLOCK.fullmatch(words[-2]):
        return tuple(words[:-2])
    if len(words) > 1 and _CLOCK.match(words[-1]):
        return tuple(words[:-1])
    return tuple(words)


def _layouts(columns: tuple[str, ...] | None) -> Iterator[tuple[str, ...]]:
    """What the cells may be, likeliest first."""
    if columns is not None:
        named = tuple(name for name in columns if name != "timestamp")
        for layout in (named, _first_side(named)):
            for blank in ((), ("redop",), ("root",), ("redop", "root")):
                yield tuple(name for name in layout if name not in blank)
        if "type" not in named:
            return
    for head in _TEXT_HEADS:
        for side in _SIDES:
            yield (*head, *side, *side)
    if columns is not None:
        return  # half a row under a whole header is the header's own half, or a row that was cut
    for head in _TEXT_HEADS:
        for side in _SIDES:
            yield (*head, *side)


def _first_side(columns: tuple[str, ...]) -> tuple[str, ...]:
    """The columns without the second half of the figures."""
    starts = [index for index, name in enumerate(columns) if name in _TIMES]
    if len(starts) < 2:
        return columns
    width = starts[1] - starts[0]
    return columns[: starts[1]] + columns[starts[1] + width :]


def _valid(layout: Sequence[str], words: Sequence[str]) -> bool:
    return all(_suits(name, word) for name, word in zip(layout, words, strict=True))


def _suits(name: str, word: str) -> bool:
    if name in ("size", "count"):
        return parse_count(word) is not None
    if name == "type":
        return word.lower() in DTYPE_BYTES
    if name == "redop":
        return word.lower() in REDOPS
    if name == "root":
        return re.fullmatch(r"-?\d{1,6}", word) is not None
    return name in _WORDS or (
        is_cell(word) and (name == "wrong" or not word.startswith("-") or not word[1:2].isdigit())
    )


def _split(layout: Sequence[str], words: Sequence[str]) -> Fitted:
    head: dict[str, str] = {}
    sides: list[dict[str, str]] = []
    for name, word in zip(layout, words, strict=True):
        if name in _TIMES:
            sides.append({})
        if name in _HEAD or not sides:
            head[name] = word
        elif name in _WORDS:
            head.setdefault(name, word)
        else:
            sides[-1][name] = word
    return Fitted(head, tuple(sides))


def is_only_numbers(words: Sequence[str]) -> bool:
    """Whether a line holds figures and nothing else, as the rest of a row that was cut does."""
    return len(words) >= 4 and all(parse_printed(word) is not None or word == "N/A" for word in words)
