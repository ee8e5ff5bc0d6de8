"""The record format as JSON lines, printed numbers, and the factors of the collectives."""

import json
from pathlib import Path

import pytest

from traincast.calibration import SCHEMA, Record, RunInfo, import_file, import_text, read_records, write_records
from traincast.calibration.ops import OPS, busbw_factor, op_name, ranks_of_factor
from traincast.calibration.printed import Printed, parse_count, parse_payload, parse_printed, parse_scaled
from traincast.errors import DataError

DATA = Path(__file__).parent.parent / "data" / "calibration"


@pytest.mark.parametrize("name", sorted(path.name for path in DATA.iterdir()))
def test_what_was_written_is_read_back(name):
    records = import_file(DATA / name).records
    assert read_records(write_records(records)) == records


def test_a_run_is_written_once_and_files_can_be_joined():
    first = write_records(import_file(DATA / "alltoall_checked.log").records)
    second = write_records(import_file(DATA / "old_broadcast_root.log").records)
    kinds = [json.loads(line)["kind"] for line in first.splitlines()]
    assert kinds == ["run"] + ["collective"] * 4
    assert {json.loads(line)["schema"] for line in first.splitlines()} == {SCHEMA}
    both = read_records(first + second)
    assert [record.op for record in both] == ["alltoall"] * 4 + ["broadcast"] * 4
    assert both[0].run.gpu == "NVIDIA H100 80GB HBM3"


def test_files_of_records_are_imported_as_they_are():
    record = Record("gemm", RunInfo(tool="suite"), kind="kernel", time_us=3.0, params=(("m", 64), ("n", 32)))
    found = import_text(write_records([record]))
    assert found.records == (record,)


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("{", "not a line of JSON"),
        ("[]", "no 'schema'"),
        ('{"schema": 9, "kind": "run"}', "schema 9"),
        ('{"schema": 1, "kind": "guess"}', "unknown"),
        ('{"schema": 1, "kind": "collective", "time_us": "fast"}', "'time_us' cannot be 'fast'"),
        ('{"schema": 1, "kind": "collective", "ranks": true}', "'ranks' cannot be True"),
    ],
)
def test_a_wrong_line_is_named(line, what):
    with pytest.raises(DataError, match=what) as caught:
        read_records(f"\n{line}\n", "mine.jsonl")
    assert caught.value.where == "mine.jsonl:2"


@pytest.mark.parametrize(
    ("text", "value", "half"),
    [("34.73", 34.73, 0.005), ("16215", 16215.0, 0.5), ("1.2e+06", 1.2e6, 5e4), ("0.00", 0.0, 0.005)],
)
def test_printed_digits(text, value, half):
    """Half a unit of the last digit: the error that rounding may have left."""
    found = parse_printed(text)
    assert found is not None
    assert (found.value, found.half) == pytest.approx((value, half))


@pytest.mark.parametrize("text", ["N/A", "nan", "-nan", "inf", "1e999", "XXX.XX", "1_0", "", "1.2.3", "9" * 50])
def test_what_is_no_number(text):
    assert parse_printed(text) is None


def test_counts_and_payloads():
    assert [parse_count(text) for text in ("32_768", "1048_576", "1,048,576", "0", "1.5", "-1")] == [
        32768,
        1048576,
        1048576,
        0,
        None,
        None,
    ]
    assert [parse_payload(text) for text in ("32KiB", "1 MiB", "4B", "65K", "1.5KiB", "0.3B")] == [
        32768,
        1 << 20,
        4,
        None,
        1536,
        None,
    ]
    assert parse_scaled("0.65GBps", "bandwidth", "GB/s") == Printed(0.65, 0.005)
    scaled = parse_scaled("2ms", "time", "us")
    assert scaled is not None
    assert (scaled.value, scaled.half) == pytest.approx((2000.0, 500.0))


@pytest.mark.parametrize(
    ("op", "ranks", "factor"),
    [("all_reduce", 8, 1.75), ("all_reduce", 128, 1.984375), ("all_gather", 16, 0.9375), ("broadcast", 8, 1.0)],
)
def test_factors_of_the_documentation(op, ranks, factor):
    """NVIDIA nccl-tests, doc/PERFORMANCE.md, "Bus bandwidth"."""
    assert busbw_factor(op, ranks) == factor


@pytest.mark.parametrize("op", sorted(OPS))
def test_ranks_and_factor_are_inverse(op):
    for ranks in (2, 3, 8, 1000):
        factor = busbw_factor(op, ranks)
        span = ranks_of_factor(op, factor * (1 - 1e-9), factor * (1 + 1e-9))
        assert span is not None
        assert span[0] - 1e-3 <= ranks <= span[1] + 1e-3


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("AllReduce", "all_reduce"),
        ("all_gather_perf", "all_gather"),
        ("alltoall_perf_mpi", "alltoall"),
        ("SendRecv", "sendrecv"),
        ("AllGather1", None),
    ],
)
def test_names_of_collectives(text, name):
    assert op_name(text) == name
