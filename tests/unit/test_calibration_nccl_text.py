"""nccl-tests as text: every form of tests/data/calibration gives the records that a reader counts by hand."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from traincast.calibration import Imported, import_file, import_text
from traincast.errors import UsageError

DATA = Path(__file__).parent.parent / "data" / "calibration"
MIB = 1 << 20
# the time of 1, 2, 4, 8 MiB in these logs: 20 us + size / 50 GB/s, as printed with two decimals
TIMES_US = {1 * MIB: 40.97, 2 * MIB: 61.94, 4 * MIB: 103.89, 8 * MIB: 187.77}


def load(name: str) -> Imported:
    return import_file(DATA / name)


def texts(found: Imported, severity: str) -> list[str]:
    return [f"{one.line}: {one.what}" for one in found.problems if one.severity == severity]


@dataclass(frozen=True)
class Want:
    """What a reader finds in a file: rows of which sizes, of what, over how many ranks and nodes."""

    sizes: tuple[int, ...]
    op: str | None
    ranks: int | None
    nodes: int | None
    dropped: tuple[int, ...] = ()


ALL = (MIB, 2 * MIB, 4 * MIB, 8 * MIB)
FORMS = {
    "old_all_reduce_error.log": Want((4, 64, *ALL[1:]), "all_reduce", 4, 2, (12, 13, 16)),
    "old_alltoall_blank_redop.log": Want(ALL, "alltoall", 4, 1),
    "old_all_gather_type_only.log": Want(ALL, None, 4, 2),
    "old_broadcast_root.log": Want(ALL, "broadcast", 4, 2),
    "wrong_rows.log": Want(ALL[:2], "all_reduce", 4, 2, (14, 15)),
    "mpi_tags.log": Want(ALL, "all_reduce", 4, 2),
    "srun_label_no_header.log": Want(ALL, "all_reduce", 16, None),
    "glued_prefix.log": Want((ALL[0], *ALL[2:]), "all_reduce", 8, None, (6, 7)),
    "per_iteration_timestamps.log": Want(ALL, "all_reduce", 4, 2),
    "cputime.log": Want(ALL, "all_reduce", 4, 2, (12,)),
    "tuning_columns.log": Want(ALL, "all_reduce", 4, 2),
    "split_groups.log": Want(ALL, "all_reduce", 4, 2),
    "one_rank.log": Want(ALL, None, 1, 1),
    "reduced_and_failed.log": Want(ALL[:2], "all_reduce", 4, 2),
    "contradictions.log": Want((ALL[0], ALL[2], 16 * MIB), "all_reduce", 4, 2, (13, 15)),
    "highest_rank_half_rows.log": Want((ALL[0], *ALL[2:]), "all_reduce", 24, 3),
    "in_place_only.log": Want(ALL[:2], "all_reduce", 4, 2),
    "function_prefix.log": Want(ALL[:3], "all_gather", 2, 2),
    "box_drawing.log": Want(ALL[:2], "all_reduce", 8, None),
    "anonymous_hosts.log": Want(ALL[:2], "all_reduce", 4, 2),
    "two_ranks_sum.log": Want(ALL, None, 2, 2),
    "none_unchecked.log": Want(ALL, None, 16, None),
    "alltoall_checked.log": Want(ALL, "alltoall", 4, 2),
    "wide_numbers.log": Want((1 << 26, 1 << 30, 1 << 36), None, 2, 2),
    "underscore_sizes.txt": Want(tuple(32768 << step for step in range(7)), "all_reduce", 8, None),
}


@pytest.mark.parametrize("name", FORMS)
def test_records_of_a_form(name):
    found, want = load(name), FORMS[name]
    assert tuple(record.size_bytes for record in found.records) == want.sizes
    assert {(record.op, record.ranks, record.nodes) for record in found.records} == {(want.op, want.ranks, want.nodes)}
    assert tuple(one.line for one in found.problems if one.severity == "dropped") == want.dropped
    assert found.tables == 1
    assert not found.refusals


@pytest.mark.parametrize("name", sorted(set(FORMS) - {"one_rank.log", "wide_numbers.log", "in_place_only.log"}))
def test_times_and_rates_stand_in_their_columns(name):
    """No root, error or iteration figure is taken for a time; GB/s are 1e9 bytes/s."""
    for record in load(name).records:
        if record.size_bytes in TIMES_US:
            assert record.time_us == pytest.approx(TIMES_US[record.size_bytes], rel=2e-4)
            assert record.algbw_bytes_per_s == pytest.approx(record.size_bytes / record.time_us * 1e6, rel=1e-3)


def test_what_a_record_says():
    record = load("alltoall_checked.log").records[-1]
    assert (record.line, record.dtype, record.redop, record.root) == (16 - 1, "float", None, None)
    assert (record.time_us, record.algbw_bytes_per_s, record.busbw_bytes_per_s) == (187.77, 44.67e9, 33.51e9)
    assert (record.in_place_time_us, record.wrong, record.in_place_wrong) == (189.65, 0.0, None)
    run = record.run
    assert (run.gpu, run.iterations, run.warmup_iterations) == ("NVIDIA H100 80GB HBM3", 20, 5)
    assert (run.ranks_source, run.op_source) == ("listed", "columns")


def test_host_names_are_hashed_and_two_hosts_stay_two():
    run = load("mpi_tags.log").records[0].run
    assert len(run.hosts) == 2
    assert all(host.startswith("host-") and "node" not in host for host in run.hosts)


def test_in_place_figures_stay_in_place():
    record = load("in_place_only.log").records[0]
    assert record.time_us is None
    assert record.in_place_time_us == 41.38


def test_the_host_time_of_dash_C_is_no_time_of_the_collective():
    """nccl-tests computes algbw from the device's time even where it prints the host's."""
    record = load("cputime.log").records[0]
    assert record.time_us == pytest.approx(40.97, rel=1e-3)
    assert "time_from_algbw" in record.flags


def test_algorithm_and_protocol_from_columns_and_from_the_environment():
    assert [record.proto for record in load("tuning_columns.log").records] == ["ll128", "ll128", "simple", "simple"]
    assert {record.algo for record in load("tuning_columns.log").records} == {"ring"}
    first = load("two_tables_lost_hash.markdown").records[0]
    assert first.algo == "tree"
    assert first.run.command == "all_reduce_perf -b 1M -e 8M -f 2 -g 1"
    assert first.run.launcher == "mpirun"


def test_versions():
    assert load("per_iteration_timestamps.log").records[0].run.nccl == "2.28.3"
    assert load("anonymous_hosts.log").records[0].run.tool == "rccl-tests develop:a1b2c3d"


def test_several_tables_in_one_file():
    old = load("old_two_runs.log")
    assert [(record.op, record.run.index, record.size_bytes) for record in old.records] == [
        *(("reduce_scatter", 0, size) for size in ALL),
        *(("reduce", 1, size) for size in ALL[:2]),
    ]
    prose = load("two_tables_lost_hash.markdown")
    assert [(record.op, record.ranks) for record in prose.records] == [("all_reduce", 4)] * 4 + [("all_gather", 4)] * 2


def test_two_collectives_without_any_header():
    records = load("no_header_two_collectives.log").records
    assert [(record.op, record.ranks, record.run.index) for record in records] == [
        *[("all_reduce", 4, 0)] * 4,
        *[("all_gather", 4, 1)] * 4,
    ]


def test_all_types_and_operations_of_one_table():
    records = load("types_and_redops.log").records
    assert [(record.dtype, record.redop) for record in records[::2]] == [
        ("half", "sum"),
        ("half", "max"),
        ("double", "sum"),
        ("double", "max"),
    ]
    assert {record.repeat for record in records} == {0}
    assert not any(record.flags for record in records)


def test_wide_numbers():
    """nccl-tests keeps its columns 7 wide: 1677742 us, then 2.7e+07 us."""
    first, second, _ = load("wide_numbers.log").records
    assert (first.time_us, first.in_place_time_us) == (1677742, 1694519)
    assert (second.time_us, second.in_place_time_us) == (2.7e7, 2.7e7)


def test_one_rank_is_marked_and_several_of_one_rank_are_refused():
    alone = load("one_rank.log")
    assert all("one_rank" in record.flags for record in alone.records)
    mixed = load("one_rank_mixed.log")
    assert not mixed.records
    assert mixed.refusals[0].line == 8
    assert "2 independent one-rank runs" in mixed.refusals[0].what
    twice = load("one_rank_twice.log")
    assert [one.line for one in twice.refusals] == [9, 23]


def test_figures_that_contradict_each_other():
    """size / time against algbw, and busbw / algbw against the ranks, beyond 3 % and the printed digits."""
    first, second = texts(load("contradictions.log"), "dropped")
    assert first.startswith("13: the row contradicts itself: size / time is 33.86 GB/s, algbw 35.89 GB/s")
    assert second.startswith("15: the row contradicts itself: busbw / algbw is 1.75")
    assert "all_reduce has 1.5 over 4 ranks" in second


def test_rows_that_contradict_the_listed_ranks_are_refused():
    found = load("contradicts_its_ranks.log")
    assert not found.records
    assert len(texts(found, "dropped")) == 4
    assert "10: the file states 2 ranks, the rows are those of 8" in texts(found, "note")
    assert found.refusals


def test_what_was_not_measured_is_said():
    (failed,) = texts(load("reduced_and_failed.log"), "note")
    assert failed.startswith("15: the run failed here: Test NCCL failure")
    assert failed.endswith("4194304, 8388608 and 16777216 were not measured")
    assert texts(load("function_prefix.log"), "note") == ["9: the table is incomplete: 8388608 was not measured"]
    assert "7: rows are left out here after size 1048576 ('...')" in texts(load("highest_rank_half_rows.log"), "note")
    assert "16: 2 values were out of bounds (FAILED)" in texts(load("wrong_rows.log"), "note")


def test_placeholders_are_no_measurements():
    found = load("placeholder.md")
    assert (found.records, found.tables, found.refusals) == ((), 1, ())
    first, second = texts(found, "dropped")
    assert first.startswith("7: time XXXXX is a placeholder")
    assert second.startswith("8: time is printed as -nan")


def test_a_log_without_a_table_is_refused_at_its_failure():
    (refusal,) = load("no_table_srun_error.log").refusals
    assert refusal.line == 2
    assert "Exited with exit code 2" in refusal.what
    assert "node-a" not in refusal.what


@pytest.mark.parametrize(("text", "line"), [("", 1), ("\n\nprose only\n", 3), ('{"a": 1,\n', 2)])
def test_anything_else_is_refused_with_its_line(text, line):
    (refusal,) = import_text(text).refusals
    assert refusal.line == line


def test_a_collective_can_be_named():
    found = import_file(DATA / "none_unchecked.log", "alltoall")
    assert {record.op for record in found.records} == {"alltoall"}
    assert found.records[0].run.op_source == "given"
    with pytest.raises(UsageError, match="no collective"):
        import_text("", op="all_the_things")


def test_a_warm_up_spike_is_kept_and_marked():
    text = (DATA / "alltoall_checked.log").read_text(encoding="utf-8")
    row = next(line for line in text.splitlines() if line.split()[:1] == ["1048576"])
    slow = row.replace("   40.97   25.59   19.19", "   400.9    2.62    1.96")
    assert slow != row
    records = import_text(text.replace(row, slow)).records
    assert len(records) == 4
    assert [record.flags for record in records] == [("spike",), (), (), ()]


def test_missing_sizes_and_an_average_that_is_not_that_of_the_rows_are_noted():
    text = (DATA / "alltoall_checked.log").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line.split()[:1] != ["2097152"]]
    assert "14: sizes between 1048576 and 4194304 are missing" in texts(import_text("\n".join(lines)), "note")
    changed = text.replace("Avg bus bandwidth    : 26.9575", "Avg bus bandwidth    : 29.9575")
    (note,) = texts(import_text(changed), "note")
    assert note.startswith("17: the average at the foot (29.9575) is not that of the rows")


def test_utf_16_and_carriage_returns(tmp_path):
    text = (DATA / "alltoall_checked.log").read_text(encoding="utf-8")
    path = tmp_path / "windows.log"
    path.write_bytes(text.replace("\n", "\r\n").encode("utf-16"))
    assert len(import_file(path).records) == 4
