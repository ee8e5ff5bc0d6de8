"""The microbenchmark suite's memory: what a resumed run measures again, and what an item will take of the budget."""

import math
import time

import pytest
from suite.groups import measured_families, shape_of
from suite.options import CPU_WITHIN, GPU_WITHIN, parse
from suite.plan import Item, Site, build, reference
from suite.progress import BUDGET, FAILED, INTERRUPTED, RUN, Progress, Took
from suite.startup import Creation
from suite.store import StoreError, best_widths, measured_us, open_store

FACTS = {"gpu": "H", "world": 4, "nodes": 1, "mesh": "tp2", "torch": "2", "backend": "nccl"}


def stored(path, *entries, **facts):
    open_store(path, False, FACTS | facts).write([{"kind": "run", "index": 0, **FACTS, **facts}, *entries])
    return open_store(path, True, FACTS | facts)


def kernel(item, **further):
    return {"kind": "kernel", "item": item, "time_us": 1.0, "run": 0, **further}


def test_what_is_less_stable_than_is_asked_for_now_is_measured_again(tmp_path):
    """By its half width, not by a flag: another --stability asks for other items."""
    lines = (
        kernel("tight", half_width=0.01),
        kernel("loose", half_width=0.05, flags=["unstable"]),
        kernel("short", half_width=0.0, flags=["too_short"]),
        {"kind": "setup", "item": "untold", "time_us": 1.0, "run": 0},
        {"kind": "skipped", "item": "never", "reason": "memory", "why": "no"},
        {"kind": "skipped", "item": "later", "reason": "budget", "why": "no"},
    )
    store = stored(tmp_path / "r.jsonl", *lines)
    assert store.done == {"tight", "loose", "short", "untold", "never"}
    assert store.unsettled(0.02) == {"loose", "short"}
    assert store.unsettled(0.1) == {"short"}
    assert store.unsettled(0.001) == {"tight", "loose", "short"}


def test_the_best_of_several_measurements_counts():
    lines = [kernel("a", half_width=0.4), kernel("a", half_width=0.01), kernel("b", half_width=0.3)]
    assert best_widths(lines) == {"a": 0.01, "b": 0.3}
    assert best_widths([kernel("c", flags=["unstable"])]) == {"c": math.inf}
    moved = {"kind": "collective", "item": "d", "in_place_time_us": 5.0, "half_width": 0.2}
    assert best_widths([moved]) == {"d": 0.2}
    assert measured_us(moved) == 5.0
    assert measured_us({"kind": "skipped", "item": "e"}) is None


@pytest.mark.parametrize(
    ("name", "value"), [("NCCL_ALGO", "Ring"), ("NCCL_NVLS_ENABLE", "0"), ("CUDA_DEVICE_MAX_CONNECTIONS", "1")]
)
def test_two_stacks_never_mix_in_one_file(tmp_path, name, value):
    """Variables that choose algorithm, protocol or order; those of logging and others may differ."""
    path = tmp_path / "r.jsonl"
    stored(path, environment={"NCCL_PROTO": "Simple", "NCCL_DEBUG": "INFO", "OMP_NUM_THREADS": "4"})
    open_store(path, True, FACTS | {"environment": {"NCCL_PROTO": "Simple", "OMP_NUM_THREADS": "1"}})
    with pytest.raises(StoreError, match=f"of another run: {name} None there, '{value}' here"):
        open_store(path, True, FACTS | {"environment": {"NCCL_PROTO": "Simple", name: value}})
    with pytest.raises(StoreError, match="of another run: NCCL_PROTO 'Simple' there, None here"):
        open_store(path, True, FACTS)


def test_what_is_no_file_is_refused(tmp_path):
    with pytest.raises(StoreError, match="is no file; name another one"):
        open_store(tmp_path, True, FACTS)


def test_stability_where_none_is_asked_for_is_what_the_machine_can_keep():
    assert (parse(["-o", "x"]).within(True), parse(["-o", "x"]).within(False)) == (GPU_WITHIN, CPU_WITHIN)
    assert parse(["-o", "x", "--stability", "0.05"]).within(True) == 0.05


def progress(budget_s, **further):
    return Progress(budget_s, begin_s=time.perf_counter(), **further)


def test_an_item_without_a_size_is_left_out_where_it_would_not_end():
    """A product has no size; what the last one took tells what the next one takes."""
    item = Item(1, "gemm", "gemm", dtype="bf16")
    run = progress(10.0)
    assert run.verdict(item, 1.0) == (RUN, 1.0)
    run.learn(item, [{"time_us": 2e6, "samples": 3, "took_s": 20.0, "params": {"inner": 1}}])
    assert run.verdict(item, 1.0)[0] == BUDGET


def test_a_larger_message_is_expected_to_take_longer():
    """In proportion: 16 times the size, 16 times the time; and the sampling gets what is left."""
    small, large = (Item(1, "collectives", "all_reduce", "tp", "all", "fp32", size) for size in (2**20, 2**24))
    run = progress(100.0)
    run.learn(small, [{"in_place_time_us": 0.5e6, "samples": 3, "took_s": 3.5, "params": {"inner": 1}}])
    assert run.least_s(small) == pytest.approx(2.0 + 7 * 0.5)
    assert run.least_s(large) == pytest.approx(16 * (2.0 + 7 * 0.5))
    assert run.verdict(large, 90.0)[0] == RUN
    seconds = run.verdict(large, 90.0)[1]
    assert seconds == pytest.approx(run.left_s - 16 * (2.0 + 4 * 0.5), abs=0.1)
    assert progress(80.0, lately=run.lately).verdict(large, 1.0)[0] == BUDGET


def test_groups_are_not_created_where_their_creation_would_not_end():
    """1,024 ranks, three times, with a second left: the creations before tell that it takes longer."""
    made = [Creation(size, count, 0.01 * count * size, 0.05 * size) for size in (2, 4, 512) for count in (1, 16)]
    item = Item(1, "setup", "new_group", params=(("size", 1024), ("count", 1)))
    run = progress(2.0, creations=made)
    assert run.least_s(item) == pytest.approx(3 * (0.01 * 1024 + 0.05 * 1024))
    assert run.verdict(item, 1.0)[0] == BUDGET
    whole = Item(1, "setup", "mesh_startup")
    families = (((0, 1), (2, 3)), ((0, 2), (1, 3)))
    assert progress(2.0, creations=made, families=families).least_s(whole) == pytest.approx(3 * 2 * (0.04 + 0.1))


def test_a_resumed_run_knows_what_the_earlier_one_took():
    options = parse(["-o", "x", "--only", "gemm,collectives"])
    families = measured_families(shape_of(4, {"tp": 2}, options.order))
    items = build(options, Site(True, families))
    before = [{"item": item.key, "time_us": 9e6, "samples": 3, "took_s": 30.0, "run": 0} for item in items]
    run = progress(20.0)
    run.remember(items, before)
    assert {run.verdict(item, 1.0)[0] for item in items if item.size_bytes > 4} == {BUDGET}


def test_an_interruption_or_a_full_disk_ends_a_run_at_the_next_item():
    item = Item(1, "gemm", "gemm")
    assert progress(10.0, interrupted=True).verdict(item, 1.0)[0] == INTERRUPTED
    assert progress(10.0, failed=True).verdict(item, 1.0)[0] == FAILED
    assert progress(1.0, end_s=3.0).verdict(item, 1.0)[0] == BUDGET  # the end of the run needs what is left


def test_the_time_of_two_things_at_once_is_taken_as_a_whole():
    item = Item(1, "overlap", "gemm+all_reduce", "tp", size_bytes=2**20)
    run = progress(10.0)
    run.learn(item, [{"kind": "overlap", "time_us": 5.0, "took_s": 1.5}])
    assert run.lately[item.reduced] == Took(2**20, 0.0, 1.5)
    run.learn(item, [{"kind": "skipped", "why": "no"}])
    assert run.lately[item.reduced].fixed_s == 1.5


def test_devices_before_ampere_get_fp16_first():
    """Compute capability 7.0 multiplies fp16 in its tensor cores and has no bf16."""
    volta = Site(True, {"world": ((0,),)}, bf16=False)
    assert reference(volta).dtype == "fp16"
    items = build(parse(["-o", "x"]), volta)
    assert {item.dtype for item in items if item.dtype} == {"fp16", "fp32"}


def test_groups_of_one_rank_are_measured_too():
    items = build(parse(["-o", "x", "--only", "setup"]), Site(True, measured_families(shape_of(8, {"tp": 2}, "tp-dp"))))
    sizes = [item.get("size") for item in items if item.op == "new_group"]
    assert sorted(set(sizes)) == [1, 2, 4, 8]
