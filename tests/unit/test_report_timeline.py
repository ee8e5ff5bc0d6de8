"""Bars of a step, its trace and its picture. Law: bars on a stream never overlap, and fill what ran."""

import json
from dataclasses import replace
from itertools import pairwise

import pytest

from traincast.engine import simulate
from traincast.errors import UsageError
from traincast.forecast import forecast, forecast_prepared, prepare
from traincast.lower.uniform import uniform_program
from traincast.report.bars import bars, representative_pipeline, waits
from traincast.report.timeline import Panel, chunk_hue, draw_timeline, time_unit
from traincast.report.trace import chrome_trace
from traincast.scenario import load_scenario
from traincast.topology import Change, degraded

KEYS = [("none", 1, 4, 1), ("gpipe", 3, 4, 1), ("1f1b", 4, 8, 1), ("interleaved", 2, 4, 3)]


def stepped(key, p2p="async"):
    program = uniform_program(key, 1.0, 2.0, send_s=0.1, p2p=p2p)
    return program, simulate(program)


@pytest.mark.parametrize("key", KEYS, ids=str)
@pytest.mark.parametrize("p2p", ["async", "blocking"])
def test_every_pass_is_one_bar_and_none_overlap(key, p2p):
    _, p, m, v = key
    program, result = stepped(key, p2p)
    found = bars(program, result)
    passes = [bar for bar in found if bar.stream == "compute"]
    assert len(passes) == 2 * p * m * v
    for stage in range(p):
        own = sorted((bar for bar in passes if bar.stage == stage), key=lambda bar: bar.start_s)
        assert all(before.end_s <= after.start_s for before, after in pairwise(own))
        assert sum(bar.end_s - bar.start_s for bar in own) == pytest.approx(3.0 * m)
    assert max(bar.end_s for bar in found) == pytest.approx(result.step_time_s)


def test_messages_have_two_ends():
    program, result = stepped(("1f1b", 4, 8, 1))
    messages = [bar for bar in bars(program, result) if bar.kind == "pp"]
    sent = sorted((bar.start_s, bar.end_s) for bar in messages if bar.stream == "pp-send")
    received = sorted((bar.start_s, bar.end_s) for bar in messages if bar.stream == "pp-recv")
    assert sent == received
    assert len(sent) == 2 * 3 * 8


def free_share(program, result):
    """Share of the step, over stages, that neither a bar nor a wait covers: what a timeline paints as idle."""
    covering = [bar for bar in bars(program, result) if bar.stream == "compute"] + list(waits(program, result))
    free_s = 0.0
    for stage in range(len(program.schedule)):
        reached_s = 0.0
        for bar in sorted((bar for bar in covering if bar.stage == stage), key=lambda bar: bar.start_s):
            free_s += max(0.0, bar.start_s - reached_s)
            reached_s = max(reached_s, bar.end_s)
        free_s += result.step_time_s - reached_s
    return free_s / result.step_time_s / len(program.schedule)


@pytest.mark.parametrize("name", ["examples/gpt_10b_1f1b", "examples/gpt_10b_interleaved", "sc21/t1_3p6b"])
@pytest.mark.parametrize("p2p", ["async", "blocking"])
def test_what_is_painted_idle_is_the_idle_of_the_title(name, p2p):
    """Law: the step less bars and waits is the breakdown's bubble; ranks of one stage differ little here."""
    found = forecast(load_scenario(name, [("training.p2p", p2p)]))
    shown = free_share(found.run.program, found.run.result)
    assert shown == pytest.approx(found.bubble.share_of_step, abs=2e-3)


def test_a_straggler_leaves_waits_for_its_group_not_idle():
    """The law holds where ranks of a stage differ: seven mates wait at every pass for the slow GPU, and at the norm."""
    prepared = prepare(load_scenario("sc21/t1_18p4b", [("parallelism.dp", "1"), ("training.global_batch", "16")]))
    slow = degraded(prepared.job.cluster, [Change("slow_gpu", "n0/gpu7", rate=0.8)])
    found = forecast_prepared(replace(prepared, job=replace(prepared.job, cluster=slow)))
    mates, slowest = found.breakdown.classes_s
    assert found.run.program.classes[0].ranks == 7
    shown = free_share(found.run.program, found.run.result) * found.step_time_s
    assert shown == pytest.approx(mates["bubble"], abs=1e-9)
    waited = [bar for bar in waits(found.run.program, found.run.result) if bar.kind == "tp"]
    total_s = sum(bar.end_s - bar.start_s for bar in waited)
    assert total_s == pytest.approx(mates["tp"] - slowest["tp"], rel=1e-9)
    assert total_s > 0.1 * found.step_time_s


@pytest.mark.parametrize("chunks", [1, 2, 4, 5, 8])
def test_chunks_have_shades_of_their_own(chunks):
    tints = ("#000000", "#404040", "#808080", "#c0c0c0")
    hues = [chunk_hue(tints, chunk, chunks) for chunk in range(chunks)]
    assert len(set(hues)) == chunks
    assert hues == sorted(hues)


def test_the_representative_pipeline_has_one_class_a_stage():
    program, _ = stepped(("1f1b", 4, 8, 1))
    assert [program.classes[index].stage for index in representative_pipeline(program)] == [0, 1, 2, 3]


def test_a_trace_is_json_with_names_for_every_stage():
    program, result = stepped(("1f1b", 4, 8, 1))
    trace = json.loads(json.dumps(chrome_trace(program, result, "a step")))
    named = {event["args"]["name"] for event in trace["traceEvents"] if event["name"] == "process_name"}
    assert named == {"stage 0", "stage 1", "stage 2", "stage 3"}
    assert trace["otherData"]["step_time_s"] == result.step_time_s
    first = next(event for event in trace["traceEvents"] if event["ph"] == "X")
    assert first["dur"] == pytest.approx(1e6)  # one second in microseconds


@pytest.mark.parametrize(("seconds", "unit"), [(1e-3, "us"), (0.5, "ms"), (19.0, "ms"), (100.0, "s")])
def test_time_units(seconds, unit):
    assert time_unit(seconds)[1] == unit


def test_a_picture_of_two_steps(tmp_path):
    panels = [Panel(str(key), *stepped(key)) for key in KEYS[2:]]
    draw_timeline(panels, tmp_path / "steps.png", dpi=40)
    assert (tmp_path / "steps.png").stat().st_size > 5000


def test_what_cannot_be_drawn(tmp_path):
    panel = Panel("", *stepped(KEYS[0]))
    with pytest.raises(UsageError, match="no picture"):
        draw_timeline([panel], tmp_path / "steps.doc")
    with pytest.raises(UsageError, match="too fine"):
        draw_timeline([panel] * 4000, tmp_path / "steps.png")
