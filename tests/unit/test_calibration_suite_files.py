"""Files of the microbenchmark suite as the simulator reads them: records, and what the suite says about its run."""

import json

import pytest

from traincast.calibration import import_text
from traincast.errors import DataError

RUN = {"kind": "run", "index": 0, "tool": "traincast suite 1", "gpu": "H200", "world": 8, "mesh": "tp8"}
ROW = {"kind": "collective", "run": 0, "op": "all_reduce", "dtype": "fp32", "ranks": 8, "size_bytes": 64}
ROW |= {"time_us": 10.0, "samples": 9, "quartile_1_us": 9.5, "quartile_3_us": 11.0, "half_width": 0.01}
END = {"kind": "end", "run": 0, "problems": [{"kind": "slow", "what": "rank 3 computes 1.50 times slower"}]}


def text(*entries):
    return "".join(json.dumps({"schema": 1, **entry}) + "\n" for entry in entries)


def test_records_carry_their_spread_and_the_run_its_mesh():
    found = import_text(text(RUN, {**ROW, "params": {"family": "tp", "groups": 2}}, END))
    (record,) = found.records
    assert (record.samples, record.quartile_1_us, record.half_width) == (9, 9.5, 0.01)
    assert (record.run.world, record.run.mesh) == (8, "tp8")
    assert dict(record.params) == {"family": "tp", "groups": 2}


def test_what_a_run_says_about_itself_is_a_note_with_its_line():
    skips = [{"kind": "skipped", "item": name, "why": "the time budget was used up"} for name in "ab"]
    found = import_text(text(RUN, ROW, *skips, END))
    assert [(one.line, one.severity, one.what) for one in found.problems] == [
        (3, "note", "2 left out: the time budget was used up"),
        (5, "note", "rank 3 computes 1.50 times slower"),
    ]


def test_what_a_resumed_run_measured_is_not_left_out():
    """`--resume` goes on in the file: of two items that an interruption left out, one was measured then. Another
    machine's measurement of it says nothing."""
    skips = [{"kind": "skipped", "run": 0, "item": name, "why": "the run was interrupted"} for name in "ab"]
    later = {**RUN, "index": 1}
    found = import_text(text(RUN, ROW, *skips, END, later, {**ROW, "run": 1, "item": "a"}, {**END, "problems": []}))
    assert [one.what for one in found.problems if "left out" in one.what] == ["1 left out: the run was interrupted"]
    other = {**later, "gpu": "B200"}
    found = import_text(text(RUN, ROW, *skips, END, other, {**ROW, "run": 1, "item": "a"}, {**END, "problems": []}))
    assert [one.what for one in found.problems if "left out" in one.what] == ["2 left out: the run was interrupted"]
    again = {**skips[0], "run": 1}
    found = import_text(text(RUN, {**ROW, "item": "a"}, END, later, {**ROW, "run": 1, "item": "b"}, again, END))
    assert [one.what for one in found.problems if "left out" in one.what] == ["1 left out: the run was interrupted"]


def test_wrong_results_are_dropped_as_those_of_nccl_tests_are():
    found = import_text(text(RUN, ROW, {**ROW, "wrong": 2.0}, END))
    assert len(found.records) == 1
    assert (found.problems[0].line, found.problems[0].severity) == (3, "dropped")
    only = import_text(text(RUN, {**ROW, "wrong": 2.0}, END))
    assert [problem.severity for problem in only.refusals] == ["refused"]


def test_a_run_that_was_cut_off_keeps_what_it_measured():
    found = import_text(text(RUN, ROW) + '{"schema":1,"kind":"coll')
    assert len(found.records) == 1
    assert [one.what.split(":")[0] for one in found.problems] == [
        "this run has no end",
        "the last line was cut off",
    ]


def test_a_broken_line_in_the_middle_is_an_error():
    with pytest.raises(DataError) as caught:
        import_text(text(RUN) + "{\n" + text(ROW), "mine.jsonl")
    assert caught.value.where == "mine.jsonl:2"
