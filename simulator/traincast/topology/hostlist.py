"""Lists of names in Slurm's bracket form: ``n[001-016,020]`` <-> n001 ... n016, n020.

Several brackets in one name multiply (``n[0-1]/nic[0-7]``); leading zeros are kept; a list at the top level is
divided by commas. Cluster files use the same form, so that a bundle of equal cables is one line.
"""

import re
from collections.abc import Iterable, Sequence
from itertools import product
from typing import Final

from traincast.errors import TopologyError

MOST_NAMES: Final = 1_000_000
_PIECE: Final = re.compile(r"([^\[\]]*)(?:\[([^\[\]]*)\])?")
_RANGE: Final = re.compile(r"(\d{1,12})(?:-(\d{1,12}))?")
_FIX: Final = "write names like n[001-016,020]"


def split_list(text: str) -> tuple[str, ...]:
    """The parts of a list at the commas outside brackets; empty parts are left out."""
    parts: list[str] = []
    depth, start = 0, 0
    for place, letter in enumerate(text):
        depth += (letter == "[") - (letter == "]")
        if letter == "," and depth <= 0:
            parts.append(text[start:place])
            start = place + 1
    return tuple(part.strip() for part in (*parts, text[start:]) if part.strip())


def expand(text: str, most: int = MOST_NAMES) -> tuple[str, ...]:
    """All names of a list, in order.

    Raises TopologyError for brackets that are not closed or hold no numbers, and for more than `most` names.
    """
    names: list[str] = []
    for part in split_list(text):
        names += _expand_one(part, most - len(names))
    return tuple(names)


def compress(names: Iterable[str]) -> tuple[str, ...]:
    """Short bracket forms of names; their expansion holds the same names, numbers ascending.

    Names that differ in one number are bundled, the last number first, so that the NICs of neighbouring nodes
    become ``n[0-19]/nic[0-7]``.
    """
    pieces = [tuple(re.split(r"([0-9]{1,12})", name)) for name in dict.fromkeys(names)]
    for place in range(max(map(len, pieces), default=0) - 2, 0, -2):
        groups: dict[tuple[tuple[str, ...], tuple[str, ...]], list[str]] = {}
        for piece in pieces:
            # a name with fewer numbers has none at this place: it stays as it is
            number = piece[place] if place < len(piece) else ""
            groups.setdefault((piece[:place], piece[place + 1 :]), []).append(number)
        pieces = [
            (*before, *([_ranges(numbers)] if numbers != [""] else []), *after)
            for (before, after), numbers in groups.items()
        ]
    return tuple("".join(piece) for piece in pieces)


def compress_in_order(names: Sequence[str]) -> tuple[str, ...]:
    """Bracket forms whose expansion is exactly `names`, in this order; they must be distinct."""
    whole = compress(names)
    if [name for text in whole for name in expand(text)] == list(names):
        return whole
    texts: list[str] = []
    run: list[str] = []
    for name in (*names, ""):
        skeleton = re.sub(r"\d+(?=\D*$)", "", name)
        if run and (not name or skeleton != re.sub(r"\d+(?=\D*$)", "", run[-1])):
            short = compress(run)
            kept = [one for text in short for one in expand(text)] == run
            texts += short if kept else run
            run = []
        run.append(name)
    return tuple(texts)


def natural_key(name: str) -> tuple[tuple[int, int, str], ...]:
    """Sorts ``n2`` before ``n10``."""
    pieces = re.findall(r"\d+|\D+", name)
    return tuple((0, int(p[:18]), p) if p.isdigit() and p.isascii() else (1, 0, p) for p in pieces)


def _ranges(numbers: Sequence[str]) -> str:
    """``[1-3,5]`` of number texts, or the number itself where it is the only one. Padded widths stay apart."""
    if len(numbers) == 1:
        return numbers[0]
    padded = {len(number) for number in numbers if number[0] == "0" and len(number) > 1}
    pieces: list[str] = []
    by_width: dict[int, list[int]] = {}
    for number in numbers:
        by_width.setdefault(len(number) if len(number) in padded else 0, []).append(int(number))
    for width, values in sorted(by_width.items()):
        for low, high in _runs(sorted(set(values))):
            pieces.append(f"{low:0{width}d}" if low == high else f"{low:0{width}d}-{high:0{width}d}")
    return f"[{','.join(pieces)}]"


def _runs(values: Sequence[int]) -> list[tuple[int, int]]:
    runs: list[tuple[int, int]] = []
    for value in values:
        if runs and value == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], value)
        else:
            runs.append((value, value))
    return runs


def _expand_one(text: str, most: int) -> list[str]:
    if text.count("[") != text.count("]"):
        raise TopologyError(f"{text!r}: brackets are not closed", fix=_FIX)
    sides: list[Sequence[str]] = []
    total, place = 1, 0
    while place < len(text):
        found = _PIECE.match(text, place)
        if found is None or found.end() == place:
            raise TopologyError(f"{text!r}: brackets inside brackets or empty", fix=_FIX)
        head, inner = found.groups()
        sides.append((head,))
        if inner is not None:
            numbers = _numbers(text, inner, most // max(1, total))
            sides.append(numbers)
            total *= len(numbers)
        place = found.end()
    if total > most:
        raise TopologyError(f"{text!r} stands for more than {most} names", fix="check the ranges")
    return ["".join(parts) for parts in product(*sides)]


def _numbers(text: str, inner: str, most: int) -> list[str]:
    numbers: list[str] = []
    for piece in inner.split(","):
        found = _RANGE.fullmatch(piece.strip())
        if found is None:
            raise TopologyError(f"{text!r}: {piece!r} is no range of numbers", fix=_FIX)
        low, high = found.group(1), found.group(2) or found.group(1)
        if int(high) < int(low):
            raise TopologyError(f"{text!r}: the range {piece!r} runs backwards", fix=_FIX)
        if int(high) - int(low) >= most - len(numbers):
            raise TopologyError(f"{text!r} stands for more than {MOST_NAMES} names", fix="check the ranges")
        numbers += [f"{value:0{len(low)}d}" for value in range(int(low), int(high) + 1)]
    return numbers
