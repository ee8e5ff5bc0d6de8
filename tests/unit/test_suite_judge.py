"""What the microbenchmark suite says against its own runs: slow ranks, throttled GPUs, loose measurements."""

import pytest
from suite.judge import OneRun, judge, named, slow_again, slowed, throttled
from suite.meta import gpu_state, hosts_of, rank_hosts, state_command, visible_uuid

HOSTS = ("host-a", "host-a", "host-b", "host-b")


def kernel(slow="", slowest_us=2.0, item="x", **further):
    params = {"slow_ranks": slow, "own_median_us": 1.0, "slowest_us": slowest_us, "compared": 4}
    params["slowest_rank"] = int(slow.split()[0]) if slow else 0
    common = {"kind": "kernel", "op": "gemm", "item": item, "time_us": 1.0, "half_width": 0.01}
    return {**common, "params": params, **further}


def judged(entries, hosts=HOSTS, stability=0.02):
    return judge([OneRun(entries, hosts)], stability)


def test_a_rank_that_is_slow_again_and_again_is_named():
    """A rank is named from two thirds of three comparisons on; once is noise."""
    assert slow_again([kernel("2"), kernel("2"), kernel()], 3, 2 / 3) == {2: 2.0}
    assert slow_again([kernel("2"), kernel(), kernel()], 3, 2 / 3) == {}
    assert slow_again([kernel("2"), kernel("2")], 3, 2 / 3) == {}
    found = judged([kernel("2")] * 3)
    assert [problem["what"] for problem in found] == ["rank 2 on host-b computes 2.00 times slower"]


def test_a_node_is_named_where_all_its_ranks_are_slow():
    run = OneRun((), HOSTS)
    assert named({2: 1.5, 3: 2.0}, run) == [("node host-b (ranks 2 to 3)", "2.00 times slower")]
    assert named({0: 1.5}, run) == [("rank 0 on host-a", "1.50 times slower")]
    assert len(named({0: 1.5, 1: 1.5}, OneRun((), ("host-a", "host-a")))) == 2  # there is no other node to compare with


def test_pairs_name_a_rank_that_both_neighbours_find_slow():
    def pair(slow, width=0.01):
        entry = kernel(slow, half_width=width, item=f"pair {slow}")
        return entry | {"kind": "collective", "params": entry["params"] | {"pattern": "pair"}}

    found = judged([pair("0 1"), pair("1 2")])
    assert [problem["what"].split(" exchanges")[0] for problem in found] == ["rank 1 on host-a"]
    noisy = judged([pair("0 1", width=0.5), pair("1 2")])
    assert [problem["kind"] for problem in noisy] == ["unstable"]


def test_ranks_of_a_resumed_run_are_judged_on_its_own_hosts():
    """Under the same number another host may stand: rank 2 of the first run is not rank 2 of the second."""
    earlier = OneRun([kernel("2")] * 3, ("host-p", "host-p", "host-q", "host-q"), index=0)
    found = judge([earlier, OneRun([kernel()] * 3, HOSTS, index=1)], 0.02)
    assert [problem["what"] for problem in found] == ["rank 2 on host-q computes 2.00 times slower (run 0)"]
    assert judge([OneRun([kernel("2")] * 2, HOSTS), OneRun([kernel("2")], HOSTS)], 0.02) == []  # never three in one run


def test_hosts_of_ranks_come_back_from_the_line_of_a_run():
    """Ranks may lie on hosts in any order."""
    for hosts in (HOSTS, ("a", "b", "a", "b"), ("a",)):
        line = {"hosts": list(dict.fromkeys(hosts)), "rank_hosts": rank_hosts(hosts), "world": len(hosts)}
        assert tuple(hosts_of(line)) == hosts
    assert rank_hosts(HOSTS) == "0*2 1*2"
    assert hosts_of({"hosts": ["a"], "world": 3}) == ["a"] * 3
    assert hosts_of({"hosts": ["a", "b"], "world": 4}) == []  # an older file does not say which


def product(times_us, widths=None, **further):
    params = {"pass": "reference", "compared": len(times_us)}
    own = {"own_us": times_us, "own_half_width": widths or [0.005] * len(times_us)}
    time_us = sorted(times_us)[len(times_us) // 2]
    return {
        "kind": "kernel",
        "item": "reference",
        "time_us": time_us,
        "half_width": 0.01,
        "params": params,
        **own,
    } | further


def test_a_rank_that_drifts_is_found_though_the_median_of_ranks_stands_still():
    """The same product at start and end, each rank against itself."""
    start = product([100.0, 100.0, 100.0, 100.0])
    drifted = product([100.0, 140.0, 101.0, 100.0])
    assert start["time_us"] == 100.0
    assert drifted["time_us"] <= 101.0
    found = throttled(OneRun([start, drifted], HOSTS))
    assert [one["what"].split(":")[0] for one in found] == [
        "the same product on rank 1 (host-a) took 40% longer at the end than at the start"
    ]
    assert throttled(OneRun([start, product([102.0] * 4)], HOSTS)) == []
    assert (
        throttled(OneRun([start, product([115.0] * 4, [0.1, 0.2, 0.3, None])], HOSTS))[0]["what"].count("rank 0") == 1
    )
    assert throttled(OneRun([start], HOSTS)) == []


def test_a_product_beside_a_collective_is_no_reference():
    """It carries the reference's shape, and is slower for a reason."""
    beside = product([500.0] * 4, kind="overlap")
    assert throttled(OneRun([product([100.0] * 4), beside], HOSTS)) == []


def test_a_rank_whose_own_product_is_slow_at_start_and_end_is_named():
    """Where only the reference ran there are two comparisons; the median over ranks shows neither."""
    slow = [product([100.0, 100.0, 130.0, 100.0], [0.01] * 4)] * 2
    assert [one["what"] for one in judged(slow)] == ["rank 2 on host-b computes 1.30 times slower"]
    assert judged([slow[0], product([100.0] * 4)]) == []
    assert judged([product([100.0, 100.0, 130.0, 100.0], [0.01, 0.01, 0.4, 0.01])] * 2) == []


@pytest.mark.parametrize(
    ("reason", "fault"),
    [
        ("0x0000000000000000", False),
        ("0x0000000000000001", False),  # idle
        ("0x0000000000000004", False),  # the power cap: a large product on a healthy GPU reaches it
        ("0x0000000000000008", True),  # hardware slowdown
        ("0x0000000000000024", True),  # power cap and heat
        ("0x0000000000000040", True),
        ("0x0000000000000080", True),
        ("[N/A]", False),
    ],
)
def test_reasons_for_a_lowered_clock(reason, fault):
    """NVML, nvmlClocksEventReasons: bits of hardware slowdown 0x8, heat 0x20 and 0x40, power brake 0x80."""
    assert slowed({"throttle": reason}) is fault


def test_the_gpu_of_any_rank_can_say_that_it_is_throttled():
    state = {"rank": 3, "throttle": "0x8", "clock_mhz": "900", "most_clock_mhz": "1980", "temperature_c": "88"}
    fine = {**state, "rank": 0, "throttle": "0x0"}
    found = throttled(OneRun((), HOSTS, [fine, state]))
    assert len(found) == 1
    assert found[0]["what"].startswith("the GPU of rank 3 (host-b) reports a reason for a lowered clock: 0x8 at 900 of")


def test_the_state_of_a_gpu_is_asked_by_what_names_it_everywhere(monkeypatch):
    """An index of CUDA is not the driver's where CUDA_VISIBLE_DEVICES hides some."""
    assert "--id=GPU-12ab" in state_command("GPU-12ab")
    found = gpu_state("1410, 1980, 55, 0x0000000000000004, 550.54\n")
    assert (found["clock_mhz"], found["throttle"], found["driver"]) == ("1410", "0x0000000000000004", "550.54")
    assert gpu_state("No devices were found\n") == {}
    monkeypatch.setattr("suite.meta.ask", lambda *command: "0, GPU-a\n1, GPU-b\n2, GPU-c")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,1")
    assert [visible_uuid(0), visible_uuid(1)] == ["GPU-c", "GPU-b"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-x")
    assert visible_uuid(0) == "GPU-x"
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert visible_uuid(1) == "GPU-b"


def test_measurements_that_are_not_known_well_are_counted_by_their_best_attempt():
    """What was measured again and is stable now is no problem any more; a short one has no width."""
    loose = kernel(item="a", flags=["unstable"], half_width=0.4)
    found = judged([loose, kernel(item="b", flags=["too_short"]), kernel(item="c")])
    assert [problem["kind"] for problem in found] == ["unstable", "too_short"]
    assert found[0]["what"].startswith("1 of 3 measurements are known to no better than 2% (half width of the median)")
    assert "worst a, 40%" in found[0]["what"]
    again = kernel(item="a", half_width=0.01)
    assert [problem["kind"] for problem in judged([loose, again])] == []
    assert judged([kernel(item="a", half_width=0.05)], stability=0.1) == []
    counted = judge([OneRun([kernel(item="d", half_width=0.3)], HOSTS)], 0.02, [loose, kernel(item="b"), again])
    assert [problem["what"].split(" measurements")[0] for problem in counted] == ["1 of 3"]


def test_a_wrong_result_is_named_out_of_place_and_in_place():
    assert judged([kernel(wrong=3.0)])[0] == {"kind": "wrong", "what": "gemm gave 3 wrong elements (x)"}
    moved = {key: value for key, value in kernel(in_place_wrong=2.0).items() if key != "time_us"} | {
        "in_place_time_us": 1.0
    }
    assert judged([moved])[0]["what"] == "gemm gave 2 wrong elements (x)"
