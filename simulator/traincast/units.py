"""Unit text in files and on screen <-> SI floats inside. Conversion happens here and nowhere else.

A quantity in a file is a number and a unit: ``400 Gbit/s``, ``1.2 us``, ``80 GiB``. A bare number is an
error, because nobody can tell Gbit/s from GB/s afterwards; only ratios and counts are bare. Units are
case-sensitive: ``b`` and ``bit`` are bits, ``B`` is a byte; k, M, G, T, P are decimal (SI), Ki, Mi, Gi, Ti
binary (IEC 80000-13). Conversion is exact rational arithmetic, rounded once, so that
``parse_time("1.2 us") == 1.2e-6``.
"""

import math
import re
from fractions import Fraction
from typing import Final

from traincast.errors import UserError

DECIMAL: Final = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15, "E": 10**18}
BINARY: Final = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50}

_TIME: Final[dict[str, Fraction]] = {
    "s": Fraction(1),
    "ms": Fraction(1, 10**3),
    "us": Fraction(1, 10**6),
    "µs": Fraction(1, 10**6),
    "μs": Fraction(1, 10**6),  # the Greek letter; the line above has the micro sign
    "ns": Fraction(1, 10**9),
    "ps": Fraction(1, 10**12),
    "min": Fraction(60),
    "h": Fraction(3600),
    "d": Fraction(86400),
}


def _prefixed(*units: str, scale: Fraction = Fraction(1), binary: bool = False) -> dict[str, Fraction]:
    prefixes = DECIMAL | BINARY if binary else DECIMAL
    return {prefix + unit: factor * scale for unit in units for prefix, factor in prefixes.items()}


_SIZE: Final = _prefixed("B", "byte", binary=True) | _prefixed("b", "bit", scale=Fraction(1, 8), binary=True)
_RATE: Final = _prefixed("FLOP/s", "FLOPs/s", "FLOPS")

# dimension -> unit -> factor to SI
UNITS: Final[dict[str, dict[str, Fraction]]] = {
    "time": _TIME,
    "size": _SIZE,
    "bandwidth": {f"{unit}/s": factor for unit, factor in _SIZE.items()} | _prefixed("bps", scale=Fraction(1, 8)),
    "flops": _prefixed("FLOP", "FLOPs"),
    "flops_per_s": _RATE,
    "frequency": _prefixed("Hz"),
    "ratio": {"": Fraction(1), "%": Fraction(1, 100)},
    "count": {prefix: Fraction(factor) for prefix, factor in DECIMAL.items()},
    "s_per_sqrt_byte": {f"{unit}/sqrt(B)": factor for unit, factor in _TIME.items()},
    "s_per_byte": {f"{unit}/B": factor for unit, factor in _TIME.items()},
}

_EXAMPLES: Final = {
    "time": "1.2 us",
    "size": "80 GiB",
    "bandwidth": "400 Gbit/s or 50 GB/s",
    "flops": "1.2 TFLOP",
    "flops_per_s": "312 TFLOP/s",
    "frequency": "1410 MHz",
    "ratio": "0.85 or 85 %",
    "count": "2048",
    "s_per_sqrt_byte": "0.012 us/sqrt(B)",
    "s_per_byte": "0.02 ns/B",
}

_LARGEST: Final = Fraction(10**300)
_NUMBER_AND_UNIT: Final = re.compile(r"\s*([+-]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d{1,3})?)\s*(.*?)\s*")


def parse_quantity(text: object, dimension: str) -> float:
    """The SI value of unit text.

    `text` is what the file holds (a number is only right for a ratio or a count), `dimension` a key of
    `UNITS`. Raises UserError, with a fix that shows the form, on a bare number, an unknown unit or a negative
    value. Ratios alone may be negative.
    """
    units = UNITS[dimension]
    if isinstance(text, bool) or not isinstance(text, str | int | float):
        raise UserError(f"{text!r} is not a {_named(dimension)}", fix=_form(dimension))
    found = _NUMBER_AND_UNIT.fullmatch(str(text))
    if found is None:
        raise UserError(f"{str(text)!r} does not start with a number", fix=_form(dimension))
    number, unit = found.groups()
    if unit not in units:
        raise _unit_error(str(text), unit, dimension)
    exact = Fraction(number) * units[unit]
    value = float(exact) if abs(exact) < _LARGEST else math.inf
    if not math.isfinite(value) or (value < 0 and dimension != "ratio"):
        raise UserError(f"{str(text)!r} is out of range for a {_named(dimension)}", fix="give a positive number")
    return value


def parse_time(text: object) -> float:
    """Seconds of a time such as ``1.2 us``."""
    return parse_quantity(text, "time")


def parse_size(text: object) -> float:
    """Bytes of a size such as ``80 GiB`` or ``32 MB``."""
    return parse_quantity(text, "size")


def parse_bandwidth(text: object) -> float:
    """Bytes per second of a bandwidth such as ``400 Gbit/s`` or ``25 GB/s``."""
    return parse_quantity(text, "bandwidth")


def parse_rate(text: object) -> float:
    """FLOP per second of a rate such as ``312 TFLOP/s``."""
    return parse_quantity(text, "flops_per_s")


def format_time(seconds: float) -> str:
    """Three significant digits: ``1.20 us``, ``7.43 s``, ``84.0 d``."""
    magnitude = abs(seconds)
    if magnitude >= 120 and math.isfinite(magnitude):
        unit, scale = ("min", 60) if magnitude < 7200 else ("h", 3600) if magnitude < 172800 else ("d", 86400)
        return f"{_significant(seconds / scale, 3)} {unit}"
    steps = (("ns", 1e-9), ("us", 1e-6), ("ms", 1e-3), ("s", 1.0))
    return _scaled(seconds, steps, 3, zero_unit="s")


def format_size(size_bytes: float) -> str:
    """Binary, three significant digits: ``80.0 GiB``."""
    steps = (("B", 1.0), *((f"{prefix}B", float(factor)) for prefix, factor in BINARY.items()))
    return _scaled(size_bytes, steps, 3, zero_unit="B", base=1024)


def format_bandwidth(bytes_per_s: float) -> str:
    """Decimal bytes, three significant digits: ``25.0 GB/s``."""
    return _scaled(bytes_per_s, _decimal_steps("B/s"), 3, zero_unit="B/s")


def format_rate(flops_per_s: float) -> str:
    """Three significant digits: ``163 TFLOP/s``."""
    return _scaled(flops_per_s, _decimal_steps("FLOP/s"), 3, zero_unit="FLOP/s")


def format_count(count: float) -> str:
    """Four significant digits: ``1.008 T``, ``145.6 G``; whole numbers below 10,000 stay whole."""
    if abs(count) < 10_000 and float(count).is_integer():
        return str(int(count))
    return _scaled(count, _decimal_steps(""), 4, zero_unit="").rstrip()


def _decimal_steps(unit: str) -> tuple[tuple[str, float], ...]:
    return tuple((prefix + unit, float(factor)) for prefix, factor in DECIMAL.items())


def _scaled(value: float, steps: tuple[tuple[str, float], ...], digits: int, zero_unit: str, base: int = 1000) -> str:
    """`value` in the largest unit of `steps` that leaves at least 1, after rounding to `digits`."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g} {zero_unit}"
    for unit, scale in steps:
        text = _significant(value / scale, digits)
        if abs(float(text)) < base:
            return f"{text} {unit}"
    unit, scale = steps[-1]
    return f"{_significant(value / scale, digits)} {unit}"


def _significant(value: float, digits: int) -> str:
    """`value` in plain notation with at least `digits` significant digits; integers are never cut."""
    decimals = digits - 1 - math.floor(math.log10(abs(value))) if value else digits - 1
    text = f"{value:.{max(0, decimals)}f}"
    # 9.996 rounds to 10.00: one digit too many
    if decimals > 0 and len(text.lstrip("-0.").replace(".", "")) > digits:
        text = f"{value:.{decimals - 1}f}"
    return text


def _named(dimension: str) -> str:
    return dimension.replace("flops_per_s", "rate").replace("_", " ")


def _form(dimension: str) -> str:
    return f"write it like {_EXAMPLES[dimension]}"


def _unit_error(text: str, unit: str, dimension: str) -> UserError:
    if not unit:
        return UserError(f"{text.strip()!r} has no unit", fix=f"{_form(dimension)}; a bare number is never a quantity")
    elsewhere = [other for other, units in UNITS.items() if unit in units]
    if elsewhere:
        return UserError(f"{text!r} is a {_named(elsewhere[0])}, not a {_named(dimension)}", fix=_form(dimension))
    if unit[:1] == "K" and unit[1:2] != "i":
        return UserError(f"unit {unit!r} is ambiguous", fix=f"write k{unit[1:]} (1000) or Ki{unit[1:]} (1024)")
    alike = [known for known in UNITS[dimension] if known.lower() == unit.lower()]
    hint = f"did you mean {' or '.join(alike)}? " if alike else ""
    return UserError(f"unknown {_named(dimension)} unit {unit!r} in {text!r}", fix=hint + _form(dimension))


def counted(number: int, one: str, many: str = "") -> str:
    """ "1 stage", "2 stages", "1,024 GPUs": a number of things in words."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"
