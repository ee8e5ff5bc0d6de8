"""Files as results of a calibration: which records make one curve, what is not used and why, and of which hardware."""

import json
from pathlib import Path

import pytest

from traincast.calibration.calibrate import calibrate
from traincast.calibration.compare import Change, settings_of, verdict_of
from traincast.calibration.curves import Curve, CurvePoint
from traincast.calibration.jsonl import MOST_NAMED, read_records
from traincast.calibration.kernel_fit import kernel_data
from traincast.calibration.nets import net_of
from traincast.calibration.origin import check_same_hardware, differs
from traincast.calibration.profile_file import Heading, fitted_on, names_text, profile_text
from traincast.calibration.records import Record
from traincast.calibration.results import Results, Stated, read_results, unused_points
from traincast.catalog import load_catalog
from traincast.errors import DataError
from traincast.profile import load_profile

RUN = {"kind": "run", "index": 0, "tool": "traincast suite 1", "gpu": "NVIDIA H200", "backend": "nccl", "world": 8}
ROW = {"kind": "collective", "run": 0, "op": "sendrecv", "ranks": 2, "nodes": 1, "size_bytes": 64, "time_us": 10.0}


KERNELS = (("adam", "fp32"), ("unfused", "bf16"), ("adam", "fp32"))


def wrote(path: Path, *entries: dict[str, object]) -> Path:
    path.write_text("".join(json.dumps({"schema": 1, **entry}) + "\n" for entry in entries), encoding="utf-8")
    return path


def of_tp(**params: object) -> dict[str, object]:
    return {"params": {"family": "tp", "mode": "alone", **params}}


def test_a_ring_and_a_ping_pong_are_two_curves(tmp_path: Path) -> None:
    """Both are sendrecv of two ranks; merged, the slower one would mark the other's points as spikes."""
    ring = [{**ROW, **of_tp(), "size_bytes": 64 * 4**n, "time_us": 20.0 * 2**n} for n in range(3)]
    pingpong = [{**ROW, **of_tp(pattern="pingpong"), "size_bytes": 64 * 4**n, "time_us": 5.0 * 2**n} for n in range(3)]
    path = wrote(tmp_path / "r.jsonl", RUN, *ring, *pingpong)
    found = read_results([path], Stated())
    assert [(one.id, len(one.usable)) for one in found.curves] == [
        ("r.jsonl run 0 tp alone sendrecv 2", 3),
        ("r.jsonl run 0 tp alone pingpong sendrecv 2", 3),
    ]
    assert found.problems[1:] == ()  # the first says that the run has no end


def test_a_run_that_went_on_makes_one_curve_with_the_run_before(tmp_path: Path) -> None:
    """--resume needs the same hardware, software and mesh (calibration/suite/store.py, AGREE)."""
    first, second = {**RUN, "date": "2026-01-01", "hosts": ["host-a"]}, {**RUN, "index": 1, "hosts": ["host-b"]}
    other = {**RUN, "index": 2, "world": 16}
    rows = [{**ROW, "run": run, "size_bytes": 64 * 4**run, "time_us": 10.0 + run} for run in range(3)]
    path = wrote(tmp_path / "r.jsonl", first, rows[0], second, rows[1], other, rows[2])
    assert [len(one.points) for one in read_results([path], Stated()).curves] == [2, 1]
    logs = [{**run, "tool": "nccl-tests"} for run in (first, second)]
    path = wrote(tmp_path / "logs.jsonl", logs[0], rows[0], logs[1], rows[1])
    assert [len(one.points) for one in read_results([path], Stated()).curves] == [1, 1]


def test_what_is_not_used_is_counted_by_its_reason(tmp_path: Path) -> None:
    rows = [{**ROW, "op": op, "flags": ["unstable"]} for op in ("all_reduce", "broadcast") for _ in range(3)]
    rows += [{**ROW, "op": None}, {**ROW, "kind": "overlap"}, {**ROW, "time_us": 1e15}, ROW]
    kernels = [{"kind": "kernel", "run": 0, "op": "gemm", "dtype": "bf16", "time_us": 1e15} for _ in range(2)]
    path = wrote(tmp_path / "r.jsonl", {**RUN, "tool": "mine"}, *rows, *kernels)
    found = read_results([path], Stated())
    assert found.problems == (
        "r.jsonl: 1 record not used: the collective is not told; add --op NAME",
        "r.jsonl: 1 record not used: overlap: it tells no constant",
        "r.jsonl:12: 2 kernels not used (gemm): no time that can be",
        "6 points of 2 curves (r.jsonl run 0 all_reduce 2, r.jsonl run 0 broadcast 2) not used: "
        "unstable, with too few samples to say how well the median is known",
        "r.jsonl run 0 sendrecv 2: 64 bytes: no time that can be",
    )
    assert (found.points, len(found.kernels)) == (1, 0)


def test_points_that_contradict_themselves_differ_in_their_reasons() -> None:
    points = tuple(CurvePoint(size, 1.0, problem=f"contradicts itself: {size}") for size in (1.0, 2.0))
    (said,) = unused_points([Curve("c", "", "", 1, 8, "", "all_reduce", points=points)])
    assert said == "2 points of c not used: such as 1 bytes: contradicts itself: 1.0"


def test_kernels_without_a_forecast_share_a_line() -> None:
    kernels = [Record(op, kind="kernel", dtype=dtype, time_us=5.0) for op, dtype in KERNELS]
    data, left_out = kernel_data(kernels, load_catalog().gpu("H200-141GB-SXM"))
    assert data is None
    assert left_out == ("3 kernels without a forecast not used: 2 adam fp32, 1 unfused bf16",)


def test_gloo_tells_nothing_of_a_gpu(tmp_path: Path) -> None:
    gloo = {**RUN, "gpu": None, "backend": "gloo"}
    path = wrote(tmp_path / "r.jsonl", gloo, ROW, ROW)
    with pytest.raises(DataError, match="2 records not used: measured over Gloo"):
        read_results([path], Stated(gpu="H200-141GB-SXM"))
    kernel = {"kind": "kernel", "run": 0, "op": "gemm", "time_us": 5.0}
    path = wrote(tmp_path / "gpu.jsonl", {**gloo, "gpu": "NVIDIA H200"}, ROW, kernel)
    found = read_results([path], Stated())
    assert (len(found.curves), len(found.kernels)) == (0, 1)


def test_records_without_a_line_of_their_own_get_that_of_the_file() -> None:
    text = "".join(json.dumps({"schema": 1, **one}) + "\n" for one in (RUN, ROW, {**ROW, "line": 7}))
    assert [record.line for record in read_records(text)] == [2, 7]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 10**400, 2**63])
@pytest.mark.parametrize("name", ["time_us", "size_bytes", "repeat"])
def test_numbers_that_nothing_measured_can_be_are_refused_with_their_line(name: str, value: float) -> None:
    with pytest.raises(DataError, match=f"'{name}' cannot be") as caught:
        read_records(json.dumps({"schema": 1, **ROW, name: value}), "r.jsonl")
    assert caught.value.where == "r.jsonl:1"
    assert len(str(caught.value)) < 200


def test_of_many_wrong_lines_the_first_are_named() -> None:
    with pytest.raises(DataError, match=f"{100 - MOST_NAMED} more lines are wrong") as caught:
        read_records("{}\n" * 100, "r.jsonl")
    assert str(caught.value).count("r.jsonl:") == MOST_NAMED + 1


@pytest.mark.parametrize(
    ("one", "other", "apart"),
    [
        ("8x200G IB HDR", "InfiniBand HDR", False),
        ("8x200G IB HDR", "8x200G IB HDR (Azure NDv4)", False),
        ("8x200G IB HDR", "", False),
        ("8x200G IB HDR", "4x200G IB HDR", True),
        ("8x200G IB HDR", "8x200G RoCE", True),
        ("InfiniBand NDR", "InfiniBand HDR", True),
        ("EFA (AWS p4d)", "azure", True),
    ],
)
def test_networks_differ_where_both_texts_say_so(one: str, other: str, apart: bool) -> None:
    assert differs(net_of(one), net_of(other)) == differs(net_of(other), net_of(one)) == apart


def across(net: str, gpu: str = "A100-SXM4-80GB") -> Results:
    return Results((Curve("c", gpu, net, 2, 16, "2.8", "all_reduce", points=(CurvePoint(1e6, 100.0),)),))


@pytest.mark.parametrize(
    ("net", "profile", "same"),
    [
        ("8x200G IB HDR", "a100-azure-ndv4", True),  # its tags: azure, ib-8x200
        ("4x200G IB HDR", "a100-azure-ndv4", False),
        ("", "a100-azure-ndv4", True),  # nobody says so
        ("8x200G RoCE", "a100-80gb-sxm", False),  # its text: HDR InfiniBand
        ("4x200G IB HDR", "a100-80gb-sxm", True),
        ("8x400G IB NDR", "a100-80gb-sxm", False),
        ("8x800G IB XDR", "blackwell-sxm", True),  # its text: NDR or XDR
    ],
)
def test_a_fabric_is_a_profiles_by_its_tags_or_its_text(net: str, profile: str, same: bool) -> None:
    results = across(net, "B200" if profile == "blackwell-sxm" else "A100-SXM4-80GB")
    settings, problems = settings_of(results)
    assert not problems
    if same:
        check_same_hardware(results, settings, load_profile(profile))
        return
    with pytest.raises(DataError, match="ran over"):
        check_same_hardware(results, settings, load_profile(profile))


def test_curves_that_cannot_be_priced_share_a_line() -> None:
    curves = tuple(Curve(f"c{n}", "", "", 1, 8, "", "all_reduce") for n in range(7))
    assert settings_of(Results(curves))[1] == (
        "c0, c1, c2, c3, c4 and 2 more: 7 curves not used: GPU '(not stated)' is not one GPU of the catalogue",
    )


def test_the_furthest_band_is_that_of_the_largest_ratio_either_way() -> None:
    bands = [Change("all_reduce", "", "", 3, ratio, 0.5, 2.0) for ratio in (1.5, 0.6, 1.1)]
    verdict = verdict_of(bands)
    assert (verdict.words, verdict.changed, verdict.cases, verdict.furthest.median_ratio) == (
        "nothing changed",
        0,
        9,
        0.6,
    )
    assert verdict_of([*bands, Change("broadcast", "", "", 1, 3.0, 0.5, 2.0)]).words == "changed"
    with pytest.raises(DataError, match="nothing to compare"):
        verdict_of([])


@pytest.mark.parametrize("name", ["mine", "123", "yes", "two words", "a: b", "#x", 'say "so"', "é", "-"])
def test_any_name_of_a_file_is_a_profiles_name(tmp_path: Path, name: str) -> None:
    head = Heading(
        name=name,
        gpu="A100-80GB-SXM",
        fabric="f",
        base="a100-80gb-sxm",
        traits={},
        fitted_curves=(name, "r.jsonl run 0 tp all_reduce 2"),
        fitted_on={"files": [name, "b.csv"], "net": 'x "y"'},
    )
    path = tmp_path / "p.yaml"
    path.write_text(profile_text(head, [], {}), encoding="utf-8")
    profile = load_profile(str(path))
    assert profile.name == name
    assert profile.own_curves == {name, "r.jsonl run 0 tp all_reduce 2"}
    assert profile.fitted_curves > profile.own_curves  # and those of the constants that it inherits
    assert fitted_on(path) == {"files": [name, "b.csv"], "net": 'x "y"'}


def test_a_fit_that_learns_nothing_says_what_it_had() -> None:
    curves = (Curve("one", "A100", "", 1, 1, "", "all_reduce"), Curve("odd", "A100", "", 1, 8, "", "hypercube"))
    message = "no time can be used; one: one rank has nobody to communicate with; odd: collective 'hypercube'"
    with pytest.raises(DataError, match=message) as caught:
        calibrate(Results(curves, files=("a.log",)), "x")
    assert caught.value.fix is not None


def test_shipped_profiles_say_nothing_of_files() -> None:
    path = Path(__file__).resolve().parents[2] / "calibration" / "profiles" / "a100-azure-ndv4.yaml"
    assert fitted_on(path) == {}
    assert names_text(["a"]) == "a"
