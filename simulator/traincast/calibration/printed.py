"""Numbers as a table prints them: the value, and half of its last digit, so that rounding is never a clash."""

import math
import re
from dataclasses import dataclass
from typing import Final

from traincast.errors import UserError
from traincast.units import parse_quantity

_NUMBER: Final = re.compile(r"[+-]?(?:\d+\.?(\d*)|\.(\d+))(?:[eE]([+-]?\d{1,3}))?")
_GROUPED: Final = re.compile(r"\d{1,4}(?:_\d{1,3})+|\d{1,3}(?:,\d{3})+|\d+")
_PLACEHOLDER: Final = re.compile(r"[xX#*?-]+(?:\.[xX#*?-]*)?|\.\.\.|…|TBD|<[^>]*>")
_NOT_A_NUMBER: Final = re.compile(r"[+-]?(?:nan(?:\([^)]*\))?|inf(?:inity)?)", re.IGNORECASE)
_ABSENT: Final = frozenset({"n/a", "na", "null", "none", "-"})
_SIZE: Final = re.compile(r"([\d._]+)\s*([KMGT]i?B|B)", re.IGNORECASE)


@dataclass(frozen=True)
class Printed:
    """A printed number: `half` is half a unit of its last digit, in the number's own unit."""

    value: float
    half: float = 0.0

    def times(self, factor: float) -> "Printed":
        """The same number in another unit."""
        return Printed(self.value * factor, self.half * abs(factor))

    @property
    def low(self) -> float:
        """The least that rounds to the printed digits."""
        return self.value - self.half

    @property
    def high(self) -> float:
        """The most that rounds to the printed digits."""
        return self.value + self.half


def parse_printed(text: str) -> Printed | None:
    """A finite number as printed (``34.73``, ``1.2e+06``), or None."""
    found = _NUMBER.fullmatch(text.strip()) if len(text) <= 40 else None
    if found is None:
        return None
    decimals = len(found.group(1) or found.group(2) or "")
    exponent = int(found.group(3) or 0)
    value = float(text)
    return Printed(value, 0.5 * 10.0 ** (exponent - decimals)) if math.isfinite(value) else None


def parse_count(text: str) -> int | None:
    """A whole number, digits grouped by ``_`` or ``,`` or not at all (wrong groups are read as digits)."""
    cleaned = text.strip()
    if len(cleaned) > 30 or _GROUPED.fullmatch(cleaned) is None:
        return None
    return int(cleaned.replace("_", "").replace(",", ""))


def parse_payload(text: str) -> int | None:
    """Bytes of ``32KiB``, ``1 MiB``, ``4B``, or of a bare whole number; None for anything else.

    A fraction of a byte is refused, as is ``K`` without ``i`` (1000 or 1024?).
    """
    bare = parse_count(text)
    found = _SIZE.fullmatch(text.strip())
    if bare is not None or found is None:
        return bare
    unit = found.group(2)
    try:
        size = parse_quantity(f"{found.group(1)} {unit[:1].upper() + unit[1:] if len(unit) > 1 else 'B'}", "size")
    except UserError:
        return None
    return int(size) if size == int(size) else None


def is_placeholder(text: str) -> bool:
    """Whether a cell stands for a number that nobody filled in: ``XXX.XX``, ``...``."""
    return _PLACEHOLDER.fullmatch(text) is not None


def is_not_a_number(text: str) -> bool:
    """Whether a cell is printed as nan or infinity."""
    return _NOT_A_NUMBER.fullmatch(text) is not None


def is_absent(text: str) -> bool:
    """Whether a cell says that there is no value: ``N/A``."""
    return text.strip().lower() in _ABSENT


def is_cell(text: str) -> bool:
    """Whether a cell may stand in a column of numbers."""
    return is_absent(text) or parse_printed(text) is not None or is_not_a_number(text) or is_placeholder(text)


def parse_scaled(text: str, dimension: str, unit: str) -> Printed | None:
    """A number with its unit glued or not (``0.65GBps``, ``19.5us``) in `unit` of `dimension`; or None.

    ``GBps`` is read as GB/s. A bare number is taken to be in `unit` already: the column says so.
    """
    found = re.fullmatch(r"\s*([+-]?[\d.]+(?:[eE][+-]?\d+)?)\s*([A-Za-zµμ/]*)\s*", text)
    number = parse_printed(found.group(1)) if found else None
    if found is None or number is None:
        return None
    written = found.group(2).replace("Bps", "B/s") or unit
    try:
        scale = parse_quantity(f"1 {written}", dimension) / parse_quantity(f"1 {unit}", dimension)
    except UserError:
        return None
    return number.times(scale)


def printable(text: str, most: int = 100) -> str:
    """Text of a file as it may be shown: one line, no control characters, at most `most` characters."""
    shown = "".join(letter if letter.isprintable() else "?" for letter in " ".join(text.split()))
    return shown if len(shown) <= most else f"{shown[: most - 3]}..."
