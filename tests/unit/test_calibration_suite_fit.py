"""A file of the microbenchmark suite as a machine with known constants would write it, fitted back to them."""

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from suite.groups import Shape, measured_families

from traincast.calibration.calibrate import calibrate
from traincast.calibration.compare import settings_of
from traincast.calibration.fit import Fit
from traincast.calibration.network_fit import fit_network
from traincast.calibration.network_model import points_of
from traincast.calibration.place import Layout, NoPlaceError, place_of
from traincast.calibration.records import Record, RunInfo
from traincast.calibration.results import Stated, read_results
from traincast.calibration.suite_groups import groups_at_once, node_gpus
from traincast.catalog import load_catalog
from traincast.costs.collectives import collective_seconds, message_seconds
from traincast.costs.machine import Machine
from traincast.profile import Profile, load_profile
from traincast.topology import NodeRequest, family_spans, node_cluster, usual_node

GPU = "H100-80GB-SXM"
NET = "8x400G IB NDR"
SIZES = [4**k for k in range(5, 17)]
RUN = {
    "kind": "run",
    "index": 0,
    "tool": "traincast suite 1",
    "gpu": "NVIDIA H100 80GB HBM3",
    "nccl": "2.26.2",
    "backend": "nccl",
    "launcher": "torchrun",
    "world": 16,
    "nodes": 2,
    "mesh": "tp8 cp1 ep1 dp2 pp1 etp1 order tp-cp-ep-dp-pp",
}
TP = tuple(tuple(range(8 * node, 8 * node + 8)) for node in range(2))
DP = tuple((rank, rank + 8) for rank in range(8))
GROUPS = {"world": (tuple(range(16)),), "tp": TP, "dp": DP}
TRUTH = {"network__one_efficiency": 0.6}
"""Beside the constants of h100-ndr8: groups with one GPU a node reach 60 % of their NIC when all run at once."""


@pytest.fixture(scope="module")
def truth() -> Profile:
    profile = load_profile("h100-ndr8").replaced(**TRUTH)
    return replace(profile, traits=replace(profile.traits, nccl="2.26.2"))


def collectives(truth: Profile) -> Iterator[dict[str, object]]:
    """Records priced from the cluster's graph by the cost functions themselves; groups by hand."""
    cluster = node_cluster(usual_node(NodeRequest(gpu=GPU)), 2)
    gpu = load_catalog().gpu(GPU)
    for family, groups in GROUPS.items():
        for op in ("all_reduce", "all_gather", "sendrecv"):
            for mode, ran in (("all", groups), ("alone", groups[:1])):
                if mode == "alone" and len(groups) == 1:
                    continue
                found = family_spans(cluster, [*ran])[0]
                siblings = len(ran) > 1
                c = Machine(gpu, truth, "bf16", 8 if siblings else found.ranks_per_node).network
                ends = {"world": [(7, 8), (0, 15)], "tp": [(g[0], g[1]) for g in ran], "dp": [*ran]}[family]
                pair = family_spans(cluster, ends)[0]
                for size in SIZES:
                    if op == "sendrecv":
                        seconds = message_seconds(size, pair, c)
                    else:
                        seconds = collective_seconds(op, size, found, c)
                    params = {"family": family, "mode": mode, "groups": len(ran)}
                    flags = ["all_groups"] if siblings else []
                    yield {
                        **{"kind": "collective", "run": 0, "op": op, "dtype": "fp32", "size_bytes": size},
                        **{"ranks": len(ran[0]), "nodes": found.nodes, "time_us": seconds * 1e6},
                        **{"half_width": 0.01, "flags": flags, "params": params},
                    }


def write(path: Path, *entries: dict[str, object]) -> Path:
    path.write_text("".join(json.dumps({"schema": 1, **entry}) + "\n" for entry in entries), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def file(truth: Profile, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("suite") / "two_nodes.jsonl", RUN, *collectives(truth), {"kind": "end"})


def fitted(file: Path, net: str | None) -> Fit:
    """As `calibrate` fits it, without the folds of its intervals."""
    settings, problems = settings_of(read_results([file], Stated(net=net)))
    assert problems == ()
    base = load_profile("h100-80gb-sxm")
    base = replace(base, traits=replace(base.traits, nccl="2.26.2"))
    return fit_network(points_of(settings, base), base)


@pytest.mark.parametrize("net", [None, NET])
def test_a_run_on_two_nodes_fits_back_to_its_constants(file: Path, truth: Profile, net: str | None) -> None:
    """2 x 8 H100 with the constants of h100-ndr8: a wire efficiency of 1.04, errors of about 1 %; that groups with one
    GPU a node reach 60 % of their NIC when all run at once is told by them alone."""
    found = fitted(file, net)
    assert np.abs(np.expm1(found.log_error)).mean() < 0.012
    values = {one.name: one for one in found.told}
    rate = found.profile["network.wire_efficiency"] * found.profile["network.inter_efficiency"]
    assert rate == pytest.approx(truth["network.wire_efficiency"] * truth["network.inter_efficiency"], rel=0.03)
    assert values["network.wire_efficiency"].value == pytest.approx(1.04, abs=0.03)
    assert values["network.one_efficiency"].value == pytest.approx(0.6, abs=0.03)
    assert set(values["network.one_efficiency"].groups) <= {
        f"two_nodes.jsonl run 0 dp {op} 2" for op in ("all_reduce", "all_gather")
    }
    assert values["message.efficiency"].value == pytest.approx(truth["message.efficiency"], rel=0.03)


def test_with_and_without_the_network_the_same_wires(file: Path) -> None:
    """One group of two ranks has one NIC of 50 GB/s, whatever is said about the eight of its node."""
    for net in (None, NET):
        settings, problems = settings_of(read_results([file], Stated(net=net)))
        assert problems == ()
        wires = {s.curve.id.removeprefix("two_nodes.jsonl run 0 "): s.place for s in settings}
        assert wires["dp alone all_reduce 2"].span.inter_bytes_per_s == 50e9
        assert wires["dp all_reduce 2"].span.inter_bytes_per_s == 50e9
        assert wires["world all_reduce 16"].span.inter_bytes_per_s == 400e9
        assert {place.gpus_per_node for place in wires.values()} == {8}
        assert wires["dp all_reduce 2"].siblings
        assert not wires["dp alone all_reduce 2"].siblings


def test_small_nodes_are_whole_where_the_run_says_so() -> None:
    """Two nodes of four GPUs: a group of all of them holds whole nodes, not some of eight GPUs."""
    place = place_of(GPU, "", 2, 8, Layout(node_gpus=4))
    assert (place.gpus_per_node, place.span.ranks_per_node) == (4, 4)
    assert not any("taken to have" in note for note in place.notes)
    log = place_of(GPU, NET, 2, 2)
    assert (log.gpus_per_node, log.span.ranks_per_node) == (1, 1)
    assert any("taken to have the 1 GPUs" in note for note in log.notes)


def record(run: RunInfo, ranks: int, nodes: int, **params: object) -> Record:
    return Record("all_reduce", run, ranks=ranks, nodes=nodes, params=tuple(params.items()))  # type: ignore[arg-type]


def test_groups_follow_from_the_mesh_of_the_run() -> None:
    """The worked case of 16 ranks, TP 2, PP 4, DP 2 (design, section 3), on two nodes."""
    mesh = "tp2 cp1 ep1 dp2 pp4 etp1 order tp-cp-ep-dp-pp"
    run = RunInfo(tool="traincast suite 1", world=16, nodes=2, mesh=mesh)
    assert node_gpus(run) == 8
    pp = groups_at_once(record(run, 4, 2, family="pp", mode="all", groups=4))
    assert pp is not None
    assert pp[:2] == ((0, 4, 8, 12), (1, 5, 9, 13))
    assert groups_at_once(record(run, 2, 1, family="tp", mode="alone", groups=1)) == ((0, 1),)
    assert groups_at_once(record(run, 2, 2, family="pp", mode="alone", pattern="pingpong")) == ((0, 12),)
    assert groups_at_once(record(run, 16, 2, family="world", mode="all", groups=1)) == (tuple(range(16)),)


@pytest.mark.parametrize(
    "shape",
    [
        Shape(tp=4, pp=2, dp=4),
        Shape(tp=2, cp=2, pp=2, dp=4, ep=4),
        Shape(tp=2, cp=2, dp=4, pp=2, order="cp-pp-tp-dp-ep"),
    ],
)
def test_groups_are_those_that_the_suite_measures(shape: Shape) -> None:
    """Every family of a run of the suite, from the text of its mesh alone (calibration/suite/groups.py)."""
    run = RunInfo(tool="traincast suite 1", world=shape.world, nodes=4, mesh=shape.text())
    for family, groups in measured_families(shape).items():
        nodes = max(len({rank // (shape.world // 4) for rank in group}) for group in groups)
        found = groups_at_once(record(run, len(groups[0]), nodes, family=family, mode="all", groups=len(groups)))
        assert found == groups, family


def test_groups_that_nobody_knows() -> None:
    """Ranks that do not fill node after node, another family, another tool, a mesh that cannot be."""
    mesh = "tp2 cp1 ep1 dp2 pp4 etp1 order tp-cp-ep-dp-pp"
    run = RunInfo(tool="traincast suite 1", world=16, nodes=2, mesh=mesh)
    assert groups_at_once(record(run, 2, 2, family="tp", mode="all", groups=8)) is None
    assert groups_at_once(record(run, 2, 2, family="pairs1", mode="all", groups=8)) is None
    assert groups_at_once(record(run, 4, 2, family="pp", mode="all", groups=5)) is None
    assert groups_at_once(record(replace(run, tool="mine"), 4, 2, family="pp")) is None
    assert groups_at_once(record(replace(run, mesh="tp3"), 4, 2, family="pp")) is None
    assert groups_at_once(record(replace(run, mesh=mesh.replace("dp2", "dp3")), 4, 2, family="pp")) is None
    assert node_gpus(replace(run, nodes=3)) is None


def test_groups_of_different_kinds_have_no_place() -> None:
    """Pairs of which some cross the nodes: one time says nothing of either."""
    with pytest.raises(NoPlaceError, match="groups of different kinds"):
        place_of(GPU, "", 2, 2, Layout(8, ((0, 1), (7, 8))))


def test_poorly_known_times_count_less(truth: Profile, tmp_path: Path) -> None:
    """Half of the times off by 10 % (a standard deviation), and so known to 20 %: they are used, and the fit is as near
    to the others as without them."""
    random = np.random.default_rng(2)
    made = []
    for number, entry in enumerate(collectives(truth)):
        noisy = number % 2 == 1
        time = float(entry["time_us"]) * math.exp(0.1 * random.standard_normal() * noisy)  # type: ignore[arg-type]
        flags = [*entry["flags"], *(["unstable"] if noisy else [])]  # type: ignore[misc]
        made.append({**entry, "time_us": time, "half_width": 0.196 if noisy else 0.01, "flags": flags})
    found = fitted(write(tmp_path / "r.jsonl", RUN, *made, {"kind": "end"}), NET)
    assert len(found.log_error) > 0.9 * len(made)  # a few stand out as spikes
    noise = np.asarray(found.data.noise)
    assert noise.max() == pytest.approx(0.1)
    assert np.abs(np.expm1(found.log_error))[noise < 0.05].mean() < 0.02


def test_what_is_known_to_no_better_than_20_percent_is_left_out(tmp_path: Path) -> None:
    row = {"kind": "collective", "run": 0, "op": "all_reduce", "ranks": 8, "nodes": 1, "time_us": 20.0}
    rows = [{**row, "size_bytes": 4**k, "flags": ["unstable"], "half_width": 0.08 * k} for k in range(1, 5)]
    path = write(tmp_path / "r.jsonl", RUN, *rows, {**row, "size_bytes": 4**9, "flags": ["unstable"]}, {"kind": "end"})
    found = read_results([path], Stated())
    assert [point.half_width for point in found.curves[0].usable] == [0.08, 0.16]
    assert found.problems == (
        "2 points of r.jsonl run 0 all_reduce 8 not used: the median is known to no better than 20 %",
        "r.jsonl run 0 all_reduce 8: 262144 bytes: unstable, with too few samples to say how well the median is known",
    )


def test_a_product_beside_a_collective_tells_how_much_it_slows_down(tmp_path: Path) -> None:
    """The reference product takes 1.24 and 1.26 times as long beside two collectives."""
    params = {
        "what": "gemm",
        "beside": "all_reduce",
        "family": "tp",
        "alone_us": 100.0,
        "m": 4096,
        "n": 4096,
        "k": 4096,
    }
    row = {"kind": "overlap", "run": 0, "op": "gemm", "dtype": "bf16", "ranks": 16, "nodes": 2, "size_bytes": 2**28}
    other = {**row, "op": "all_reduce", "time_us": 900.0, "params": {**params, "what": "all_reduce", "beside": "gemm"}}
    rows = [{**row, "time_us": time, "params": params} for time in (124.0, 126.0)]
    path = write(tmp_path / "r.jsonl", RUN, *rows, other, {"kind": "end"})
    results = read_results([path], Stated())
    assert results.problems == ("r.jsonl: 1 record not used: overlap: it tells no constant",)
    (told,) = calibrate(results, "mine").fits[0].told
    assert told.name == "overlap.slowdown"
    assert told.value == pytest.approx(0.25, abs=0.02)
    assert told.groups == ("gemm beside all_reduce",)


def test_memory_kernels_tell_backward_and_in_adam_too(tmp_path: Path) -> None:
    """Kernels of known traffic at 0.9 of the bandwidth; a backward one that may wait for the host tells nothing."""
    bandwidth = load_catalog().gpu(GPU).memory_bandwidth_bytes_per_s

    def row(op: str, dtype: str, moved: float, which: str) -> dict[str, object]:
        seconds = moved / (0.9 * bandwidth) + 3e-6
        return {
            **{"kind": "kernel", "run": 0, "op": op, "dtype": dtype, "time_us": seconds * 1e6, "half_width": 0.01},
            **{"bandwidth_bytes_per_s": moved / seconds, "params": {"pass": which} if which else {"parameters": 1}},
        }

    rows = [row(op, "bf16", 8e8, "backward") for op in ("gelu", "softmax", "layer_norm")]
    rows += [row("adam", "fp32", 28.0 * 2**k, "") for k in (26, 29)]
    short = row("gelu", "bf16", 1e8, "backward")
    path = write(tmp_path / "r.jsonl", RUN, *rows, short, {"kind": "end"})
    found = calibrate(read_results([path], Stated()), "mine")
    assert found.profile["memory.efficiency"] == pytest.approx(0.9, abs=0.02)
    assert set(found.fits[0].data.group) == {f"{op} backward bf16" for op in ("gelu", "softmax", "layer_norm")} | {
        "adam fp32"
    }
    assert found.problems == ("1 kernel without a forecast not used: 1 gelu bf16",)
