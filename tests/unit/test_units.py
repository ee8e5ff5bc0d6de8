"""units.py. Law: SI prefixes (BIPM SI brochure, 9th ed.), binary ones (IEC 80000-13), 8 bit = 1 byte."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traincast import units
from traincast.errors import UserError


@pytest.mark.parametrize(
    ("text", "dimension", "value"),
    [
        ("1.2 us", "time", 1.2e-6),
        ("1.2 µs", "time", 1.2e-6),
        ("90 ns", "time", 90e-9),
        ("3 min", "time", 180.0),
        ("1e3 ms", "time", 1.0),
        ("80 GiB", "size", 80 * 2**30),
        ("80 GB", "size", 80e9),
        ("32 kB", "size", 32_000.0),
        ("8 bit", "size", 1.0),
        ("400 Gbit/s", "bandwidth", 50e9),
        ("400 Gb/s", "bandwidth", 50e9),
        ("400 Gbps", "bandwidth", 50e9),
        ("400 GB/s", "bandwidth", 400e9),
        ("25GB/s", "bandwidth", 25e9),
        ("312 TFLOP/s", "flops_per_s", 312e12),
        ("2.5 PFLOP/s", "flops_per_s", 2.5e15),
        ("1410 MHz", "frequency", 1.41e9),
        ("85 %", "ratio", 0.85),
        ("0.85", "ratio", 0.85),
        (0.85, "ratio", 0.85),
        (-0.02, "ratio", -0.02),
        (2048, "count", 2048.0),
        ("1.008 T", "count", 1.008e12),
        ("0.012 us/sqrt(B)", "s_per_sqrt_byte", 1.2e-8),
    ],
)
def test_text_becomes_si_exactly(text: object, dimension: str, value: float) -> None:
    """One rounding only: the result is the float nearest to the exact rational, so `==` holds."""
    assert units.parse_quantity(text, dimension) == value


def test_a_bit_is_an_eighth_of_a_byte_and_binary_prefixes_are_powers_of_1024() -> None:
    assert units.parse_bandwidth("400 GB/s") == 8 * units.parse_bandwidth("400 Gbit/s")
    assert units.parse_size("1 GiB") / units.parse_size("1 MiB") == 1024
    assert units.parse_size("1 GB") / units.parse_size("1 MB") == 1000


@pytest.mark.parametrize("bare", [400, 1.2, "400", " 1.2 "])
@pytest.mark.parametrize("dimension", ["time", "size", "bandwidth", "flops", "flops_per_s", "frequency"])
def test_a_bare_number_is_refused_with_the_form_to_write(bare: object, dimension: str) -> None:
    """DESIGN: a bare number in a file is an error."""
    with pytest.raises(UserError, match="has no unit") as caught:
        units.parse_quantity(bare, dimension)
    assert caught.value.fix is not None
    example = caught.value.fix.removeprefix("write it like ").split(" or ")[0].split(";")[0]
    assert units.parse_quantity(example, dimension) > 0


@pytest.mark.parametrize(
    ("text", "dimension", "message", "fix"),
    [
        ("4 KB", "size", "ambiguous", "kB (1000) or KiB (1024)"),
        ("4 gb/s", "bandwidth", "unknown", "GB/s or Gb/s"),
        ("4 GB", "bandwidth", "is a size", "Gbit/s"),
        ("4 TFLOP", "flops_per_s", "is a flops", "TFLOP/s"),
        ("4 parsec", "time", "unknown", "us"),
        ("-4 s", "time", "out of range", "positive"),
        ("1e400 s", "time", "out of range", "positive"),
        ("1e999999999 s", "time", "unknown", "us"),
        ("fast", "bandwidth", "start with a number", "Gbit/s"),
        ("nan s", "time", "start with a number", "us"),
        ("1 / 3 s", "time", "unknown", "us"),
        (None, "time", "not a time", "us"),
        (True, "count", "not a count", "2048"),
    ],
)
def test_a_wrong_unit_is_refused_and_the_fix_says_what_to_write(
    text: object, dimension: str, message: str, fix: str
) -> None:
    with pytest.raises(UserError, match=message) as caught:
        units.parse_quantity(text, dimension)
    assert fix in (caught.value.fix or "")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (units.format_time(0.0), "0 s"),
        (units.format_time(1.2e-6), "1.20 us"),
        (units.format_time(7.43), "7.43 s"),
        (units.format_time(0.9996), "1.00 s"),
        (units.format_time(84 * 86400), "84.0 d"),
        (units.format_time(-1e-3), "-1.00 ms"),
        (units.format_time(math.inf), "inf s"),
        (units.format_size(80 * 2**30), "80.0 GiB"),
        (units.format_size(1023.9 * 2**20), "1.00 GiB"),
        (units.format_bandwidth(25e9), "25.0 GB/s"),
        (units.format_rate(163e12), "163 TFLOP/s"),
        (units.format_rate(502e15), "502 PFLOP/s"),
        (units.format_count(1.008e12), "1.008 T"),
        (units.format_count(145.6e9), "145.6 G"),
        (units.format_count(3072), "3072"),
    ],
)
def test_printed_forms(text: str, expected: str) -> None:
    assert text == expected


@given(st.floats(min_value=1e-9, max_value=1e7))
def test_a_printed_time_reads_back_within_its_three_digits(seconds: float) -> None:
    """Law: three significant digits leave at most half a unit in the third, 0.5 %."""
    assert units.parse_time(units.format_time(seconds)) == pytest.approx(seconds, rel=5.1e-3)


@given(st.floats(min_value=1.0, max_value=1e18))
def test_a_printed_bandwidth_size_and_count_read_back(value: float) -> None:
    assert units.parse_bandwidth(units.format_bandwidth(value)) == pytest.approx(value, rel=5.1e-3)
    assert units.parse_size(units.format_size(value)) == pytest.approx(value, rel=5.1e-3)
    assert units.parse_rate(units.format_rate(value)) == pytest.approx(value, rel=5.1e-3)
    assert units.parse_quantity(units.format_count(value), "count") == pytest.approx(value, rel=5.1e-4)


def test_one_of_a_thing_is_not_many() -> None:
    assert units.counted(1, "stage") == "1 stage"
    assert units.counted(2, "microbatch", "microbatches") == "2 microbatches"
    assert units.counted(16384, "GPU") == "16,384 GPUs"
