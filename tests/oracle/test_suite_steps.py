"""Steps of the microbenchmark suite in one process: sampling, buffers, two things at once, what a fault means.

PyTorch is optional; without it these are skipped.
"""

import os
import time
from itertools import pairwise
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from suite import clocks, collectives, facts, kernels, overlap, trial, world  # noqa: E402
from suite.launch import Launch, LaunchError  # noqa: E402
from suite.log import AGAIN, DONE, NEW, Log  # noqa: E402
from suite.sampling import Limits, Sampled, sample  # noqa: E402
from suite.store import Store  # noqa: E402

pytestmark = pytest.mark.oracle


class Clock:
    """A world of one rank whose repetitions take what a list says."""

    def __init__(self, times_s, monkeypatch):
        self.times_s, self.now_s, self.calls = times_s, 0.0, 0
        self.size, self.rank, self.gpu = 1, 0, False
        monkeypatch.setattr("suite.sampling.time", SimpleNamespace(perf_counter=lambda: self.now_s))

    def run(self, i):
        self.now_s += self.times_s[self.calls % len(self.times_s)]
        self.calls += 1

    def timed(self, run, count, first=0):
        begin_s = self.now_s
        for i in range(count):
            run(first + i)
        return self.now_s - begin_s

    def gather(self, values):
        return [list(values)]

    def barrier(self):
        pass

    synchronize = barrier


def test_a_steady_time_needs_six_samples_and_a_slow_one_gets_three(monkeypatch):
    """What fits no more than three times has an interval all the same, from Student's t; it may be stable."""
    clock = Clock([0.001], monkeypatch)
    found = sample(clock, clock.run, Limits(seconds=2.0), together=True)
    assert (len(found.series()), found.stable, found.too_short) == (6, True, False)
    slow = Clock([1.0], monkeypatch)
    found = sample(slow, slow.run, Limits(seconds=2.0), together=True)
    assert (len(found.series()), found.stable, found.too_short) == (3, True, False)
    loose = Clock([1.0, 1.2, 1.0, 1.1], monkeypatch)
    found = sample(loose, loose.run, Limits(seconds=2.0), together=True)
    assert (len(found.series()), found.stable, found.too_short) == (3, False, False)
    assert found.spread().half_width > 0.1


def test_an_unsteady_time_is_sampled_as_long_as_it_may_and_no_longer(monkeypatch):
    """Rounds are cut to what is left: the last one does not run over."""
    clock = Clock([0.1, 0.3, 0.2, 0.15], monkeypatch)
    found = sample(clock, clock.run, Limits(seconds=4.0, sample_s=0.1), together=True)
    assert not found.stable
    assert 15 <= len(found.series()) <= 24
    assert clock.now_s < 4.0 + 1.0  # warm-up


def test_a_step_of_the_clock_that_is_more_than_may_be_unknown_means_too_short():
    """10 us to 2 % is 0.2 us: a clock of 0.5 us does not tell it, and a batch of ten does."""
    series = ((10e-6,) * 6,)
    coarse = Limits(stability=0.02, tick_s=0.5e-6)
    assert Sampled(series, 1, True, coarse).too_short
    assert not Sampled(series, 10, True, coarse).too_short
    assert Sampled(((1.0, 1.0),), 1, True, coarse).too_short  # two samples tell nothing
    halved = Sampled(series, 10, True, coarse).halved()
    assert (halved.inner, halved.series()[0]) == (20, 5e-6)


@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "reduce_scatter", "alltoall", "broadcast", "sendrecv"])
def test_buffers_are_as_large_as_was_said_before(op, monkeypatch):
    """The check before a measurement counts what `build` then allocates, and the check of the result."""
    here = SimpleNamespace(device=torch.device("cpu"), gpu=False)
    monkeypatch.setattr(collectives, "l2_bytes", lambda one: 2**16)
    made = []
    real = torch.zeros
    monkeypatch.setattr(torch, "zeros", lambda count, **further: made.append(count) or real(count, **further))
    member = collectives.Member(None, (0, 1, 2, 3), 0, 0)
    collectives.build(here, op, member, 2**14)
    needed = collectives.layout(op, 4, 2**14).needed_bytes(here)
    assert needed - collectives._CHECK_BYTES == 4 * sum(made)


def test_an_error_on_one_of_two_threads_is_not_lost():
    def broken(i):
        raise RuntimeError("Connection closed by peer")

    with pytest.raises(RuntimeError, match="Connection closed"):
        overlap._on_threads(((broken, 2), (lambda i: None, 2)))
    assert overlap._on_threads((None, None)) == (0.0, 0.0)
    one, two = overlap._on_threads((None, (lambda i: time.sleep(0.001), 3)))
    assert one == 0.0
    assert two >= 0.003


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (MemoryError("Adam does not fit"), "memory"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried 9 bytes"), "memory"),
        (world.OUT_OF_MEMORY("CUDA out of memory. Tried to allocate 8 GiB"), "memory"),
        (RuntimeError("CUDA error: CUBLAS_STATUS_NOT_SUPPORTED when calling x"), "unsupported"),
        (RuntimeError("ProcessGroupGloo does not support it\nin /a/file"), "unsupported"),
    ],
)
def test_a_fault_is_a_matter_of_memory_or_of_support(error, reason):
    found, words = trial._fault(error)
    assert found == reason
    assert "/" not in words


@pytest.mark.parametrize("words", ["CUDA error: an illegal memory access was encountered", "Connection closed by peer"])
def test_what_breaks_a_rank_for_good_ends_the_run(words):
    """After it every later operation would fail too, and look unsupported."""
    with pytest.raises(RuntimeError, match=words):
        trial._fault(RuntimeError(words))


def test_an_fp8_product_has_the_one_layout_that_hopper_multiplies(monkeypatch):
    """A row by row, B column by column, scales of one; fast sums forward only. Checked on the processor's product."""
    monkeypatch.setattr(kernels, "copies_of", lambda here, size: 1)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    seen = []
    real = torch._scaled_mm
    monkeypatch.setattr(
        torch, "_scaled_mm", lambda a, b, **further: seen.append((a, b, further, real(a, b, **further)))
    )
    here = SimpleNamespace(device=torch.device("cpu"), gpu=True)
    kernels._fp8(here, (32, 48, 64), False)(0)
    left, right, further, product = seen[0]
    assert (left.shape, left.stride(), right.shape, right.stride()) == ((32, 64), (64, 1), (64, 48), (1, 64))
    assert torch.allclose(product.float(), left.float() @ right.float(), rtol=0.02, atol=0.1)
    assert (product.dtype, further["use_fast_accum"]) == (torch.bfloat16, False)
    with pytest.raises(kernels.UnsupportedError, match="multiples of 16"):
        kernels._fp8(here, (32, 48, 60), False)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 6))
    with pytest.raises(kernels.UnsupportedError, match="no fp8 product"):
        kernels._fp8(here, (32, 48, 64), False)


def test_the_state_of_a_gpu_is_asked_while_the_product_runs(tmp_path, monkeypatch):
    """An idle GPU lowers its clock for no fault: the product goes on until the driver's tool has answered."""
    script = tmp_path / "nvidia-smi"
    script.write_text("#!/bin/sh\nsleep 0.2\necho '1980, 1980, 60, 0x0, 550.1'\n", encoding="utf-8")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    runs = []

    def run(i):
        time.sleep(0.001)
        runs.append(time.monotonic())

    begin = time.monotonic()
    here = SimpleNamespace(synchronize=lambda: None, gpu=True)
    assert clocks.busy_state(here, run, "GPU-1")["clock_mhz"] == "1980"
    assert runs[-1] - begin >= 0.2
    assert max(later - before for before, later in pairwise(runs)) < 0.15
    script.unlink()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert clocks.busy_state(here, run, None) == {}


def test_ranks_that_share_a_gpu_or_differ_are_found(monkeypatch):
    """NCCL would say `Duplicate GPU detected` after a while; variables that reach one node only are no rarity."""
    monkeypatch.setattr(facts, "gpu_uuid", lambda: "GPU-1")
    rows = [("host-a", "x"), ("host-a", "y"), ("host-b", "x"), ("host-a", "x")]
    here = SimpleNamespace(backend="nccl", rank=0, agreed_bytes=lambda data: data, gather_objects=lambda mine: rows)
    with pytest.raises(LaunchError, match="ranks 0 and 3 share a GPU, which NCCL refuses; start one process a GPU"):
        facts.labelled(here)
    common = {"gpu": "H100", "driver": "550", "torch": "2.7", "nccl": "2.26"}
    ranks = [{**common, "environment": {"NCCL_ALGO": value} if value else {}} for value in ("Ring", "Ring", "")]
    found = facts.differences(ranks, ("host-a", "host-a", "host-b"))
    assert found == [
        "1 ranks differ in environment: {'NCCL_ALGO': None} on rank 2 (host-b), {'NCCL_ALGO': 'Ring'} on rank 0"
    ]
    assert facts.differences(ranks[:2], ("host-a", "host-a")) == []


def test_processes_that_cannot_join_are_a_users_error(monkeypatch):
    """A launcher that announces more than it starts: PyTorch's own words, and what to do."""

    def refuse(**further):
        raise RuntimeError("The client socket has timed out\n#0 c10d")

    monkeypatch.setattr(torch.distributed, "init_process_group", refuse)
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)
    with pytest.raises(LaunchError, match="cannot join: The client socket has timed out; start as many processes"):
        world.join(Launch(), "gloo")


def test_the_clock_of_the_process_has_steps_below_a_microsecond():
    assert 0 < world.clock_tick_s(False) < 1e-5
    assert world.clock_tick_s(True) == 0.5e-6


def test_an_earlier_run_that_was_killed_is_judged_with_its_own_hosts(tmp_path):
    """One that ended has judged itself; of it only the measurements count."""
    ended = [{"kind": "run", "index": 0, "hosts": ["p"], "world": 1}, {"kind": "kernel", "item": "a"}, {"kind": "end"}]
    killed = [
        {"kind": "run", "index": 1, "hosts": ["q", "r"], "rank_hosts": "1*1 0*1"},
        {"kind": "kernel", "item": "b"},
    ]
    found, judged = Log(Store(tmp_path / "r.jsonl", [*ended, *killed]), {"kind": "run"}).runs()
    assert [(one.index, one.hosts, [line["item"] for line in one.entries]) for one in found] == [(1, ["r", "q"], ["b"])]
    assert judged == ended


def test_what_earlier_runs_know_is_new_done_or_to_be_measured_again(tmp_path):
    lines = [
        {"kind": "kernel", "item": key, "time_us": 1.0, "half_width": width} for key, width in (("a", 0.01), ("b", 1))
    ]
    log = Log(Store(tmp_path / "r.jsonl", [{"kind": "run"}, *({**line, "run": 0} for line in lines)]), {"kind": "run"})
    assert log.states(["a", "b", "c"], 0.02) == [DONE, AGAIN, NEW]
    assert (log.times("b"), log.times("c")) == (1, 0)
    assert Log(None, {"kind": "run"}).states(["a"], 0.02) == [NEW]
