"""Measurements in other forms than nccl-tests' text: JSON, CSV, torch, nvbandwidth, matrix products."""

from pathlib import Path

import pytest

from traincast.calibration import import_file, import_text
from traincast.errors import DataError

DATA = Path(__file__).parent.parent / "data" / "calibration"
MIB = 1 << 20


def load(name: str):
    return import_file(DATA / name)


def lines_of(found, severity: str) -> list[int]:
    return [one.line for one in found.problems if one.severity == severity]


def test_json_of_nccl_tests():
    found = load("nccl_tests.json")
    assert [(record.op, record.ranks, record.nodes, record.size_bytes) for record in found.records] == [
        ("reduce_scatter", 4, 1, MIB),
        ("reduce_scatter", 4, 1, 2 * MIB),
    ]
    assert lines_of(found, "dropped") == [93]  # its time is "nan"
    run = found.records[0].run
    assert (run.nccl, run.gpu, run.date) == ("2.23.4", "NVIDIA H200", "2025-03-04 05:06:07")
    assert run.command == "reduce_scatter_perf -b 1M -e 4M -f 2 -g 4 -J out.json"
    assert run.environment == (("NCCL_PROTO", "Simple"),)
    assert (found.records[0].proto, found.records[0].time_us) == ("simple", 40.97152)


def test_a_json_document_without_an_end_gives_the_rows_that_stand():
    found = load("nccl_tests_cut.json")
    assert [record.size_bytes for record in found.records] == [MIB, 2 * MIB]
    assert {record.ranks for record in found.records} == {4}
    assert any("no end" in one.what for one in found.problems)


def test_the_dialect_keyed_by_size_behind_banners():
    found = load("dialect.json")
    assert [(record.op, record.ranks, record.size_bytes) for record in found.records] == [
        ("alltoall", 8, MIB),
        ("alltoall", 8, 2 * MIB),
    ]
    assert found.records[0].in_place_wrong is None
    assert found.records[0].line == 5


@pytest.mark.parametrize(("name", "count"), [("rccl_fragments.json", 2), ("rccl_list.json", 3), ("rccl.csv", 3)])
def test_rccl_joins_rows_in_place_and_out_of_place(name, count):
    records = load(name).records
    assert len(records) == count
    first = records[0]
    assert (first.op, first.ranks, first.nodes, first.size_bytes) == ("all_reduce", 4, 1, MIB)
    assert first.in_place_time_us == pytest.approx(first.time_us * 1.01)
    assert count == 2 or records[2].op == "broadcast"


def test_no_ranks_are_no_statement():
    """A field of 0 ranks says nothing; the factor 1.5 does."""
    text = (DATA / "rccl_fragments.json").read_text(encoding="utf-8").replace('"ranks": 4', '"ranks": 0')
    assert {record.ranks for record in import_text(text).records} == {4}


def test_a_short_csv_row_is_reported():
    assert lines_of(load("rccl.csv"), "dropped") == [7]


def test_csv_with_a_header_in_three_lines():
    records = load("grouped_header.csv").records
    assert [(record.op, record.ranks, record.line) for record in records] == [
        ("all_reduce", 8, 4),
        ("all_reduce", 8, 5),
    ]
    assert (records[0].time_us, records[0].in_place_time_us) == (40.97, 40.97)


def test_a_look_up_table_in_nanoseconds():
    """40.97 us are written as 40970; ranks follow from busbw / (size / time) = 1.75."""
    records = load("lut_nanoseconds").records
    assert [record.size_bytes // MIB for record in records] == [1, 2, 3, 4, 5]
    assert {(record.op, record.ranks) for record in records} == {("all_reduce", 8)}
    assert (records[0].time_us, records[0].in_place_time_us) == (40.97, 40.97)


def test_a_table_of_a_torch_benchmark():
    found = load("torch_all_reduce.md")
    assert [record.size_bytes for record in found.records] == [32768, MIB, 2 * MIB, 4 * MIB, 8 * MIB]
    assert {(record.op, record.ranks) for record in found.records} == {("all_reduce", 16)}
    assert found.records[1].time_us == pytest.approx(40.97, rel=1e-3)
    assert all("time_from_algbw" in record.flags for record in found.records)
    assert (found.records[0].run.torch, found.records[0].run.nccl) == ("2.9.1+cu130", "2.27.7")
    assert lines_of(found, "dropped") == [12]


def test_durations_rank_by_rank():
    """Two ranks, two trials: a record each, with the upper median of the ranks' times."""
    records = load("torch_durations.txt").records
    assert [(record.op, record.ranks, record.size_bytes) for record in records] == [("all_reduce", 2, 4 * 10**9)] * 2
    assert [record.time_us for record in records] == pytest.approx([510_000, 410_000])


def test_nvbandwidth_as_text():
    found = load("nvbandwidth.txt")
    cells = {(record.op, dict(record.params)["row"], dict(record.params)["column"]): record for record in found.records}
    assert len(cells) == 6
    assert cells["host_to_device_memcpy_ce", 0, 1].bandwidth_bytes_per_s == pytest.approx(55.3e9)
    assert cells["device_to_device_memcpy_read_ce", 1, 0].bandwidth_bytes_per_s == pytest.approx(391.2e9)
    assert cells["host_device_latency_sm", 0, 0].time_us == pytest.approx(0.77258)
    assert lines_of(found, "dropped") == [32]  # its sum is not that of its matrix
    assert lines_of(found, "note") == [34]  # a test was waived
    run = found.records[0].run
    assert (run.tool, run.driver, run.cuda, run.gpu) == (
        "nvbandwidth v0.8",
        "550.54.15",
        "12.4",
        "NVIDIA H100 80GB HBM3",
    )


def test_nvbandwidth_as_json():
    found = load("nvbandwidth.json")
    assert [record.bandwidth_bytes_per_s for record in found.records] == pytest.approx([390.1e9, 391.2e9])
    assert ["multicast" in one.what for one in found.problems] == [True]


def test_tables_of_matrix_products():
    found = load("gemm.md")
    first, second, best = found.records
    assert (dict(first.params), first.dtype) == ({"k": 1024, "m": 1024, "n": 1024}, "fp8")
    assert first.flops_per_s == pytest.approx(290.8e12)
    assert second.time_us == pytest.approx(2 * 8192**3 / 1300.6e12 * 1e6)
    assert (dict(best.params), best.run.gpu) == ({"k": 13312, "m": 2048, "n": 2048}, "H100 SXM")
    assert lines_of(found, "dropped") == [8]


def test_a_rate_that_contradicts_its_time():
    found = load("gemm.csv")
    assert [(record.time_us, record.dtype) for record in found.records] == [(200.0, "bf16")]
    assert "contradicts itself" in found.problems[0].what


def test_the_log_of_the_mamf_finder():
    records = load("mamf_finder.txt").records
    assert [dict(record.params)["m"] for record in records] == [1024, 2048]
    assert {record.dtype for record in records} == {"bf16"}


def test_a_file_that_cannot_be_read(tmp_path):
    with pytest.raises(DataError, match="cannot read"):
        import_file(tmp_path / "missing.log")
    for name, data in (("a.gz", b"\x1f\x8b\x08" + bytes(20)), ("b.bin", bytes(100))):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(DataError, match=r"compressed|no text"):
            import_file(tmp_path / name)


def test_json_of_no_known_form():
    (refusal,) = import_text('{"results": 4}').refusals
    assert "no known form" in refusal.what
