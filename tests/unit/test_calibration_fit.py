"""Fits of profiles: they find what made the data, leave what no data told, and write what can be read back."""

import csv
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from traincast.calibration.calibrate import calibrate
from traincast.calibration.compare import cases_of, changes
from traincast.calibration.curves import Curve, CurvePoint, marked, read_curves
from traincast.calibration.fit import Data, Prior, fit_constants
from traincast.calibration.kernel_fit import fit_kernels, kernel_data
from traincast.calibration.network_fit import fit_network
from traincast.calibration.network_model import forecast_points, points_of, predicted_s, setting_of
from traincast.calibration.profile_file import with_intervals
from traincast.calibration.records import Record, RunInfo
from traincast.calibration.results import Results, Stated, read_results
from traincast.catalog import load_catalog
from traincast.errors import DataError
from traincast.profile import Band, Interval, Profile, load_profile

SIZES = [2.0**k for k in range(10, 34, 2)]
TRUTH = {
    "network__launch": 12e-6,
    "network__intra_latency": 1.7,
    "network__intra_efficiency": 0.9,
    "network__inter_latency": 1.2,
    "network__wire_efficiency": 0.6,
    "network__hop": 15e-6,
}


def curve(name: str, op: str, nodes: int, ranks: int) -> Curve:
    points = tuple(CurvePoint(size, 1.0) for size in SIZES)
    net = "8x200G IB HDR" if nodes > 1 else "NVLink3 NVSwitch"
    return Curve(name, "A100-SXM4-80GB", net, nodes, ranks, "2.8.4", op, launch="process", points=points)


def measured(curves: list[Curve], truth: Profile, noise: float = 0.0) -> tuple[Curve, ...]:
    """The curves as a machine with these constants would measure them."""
    random = np.random.default_rng(1)
    made = []
    for one in curves:
        setting = setting_of(one)
        points = []
        for point in one.points:
            seconds, _ = predicted_s(setting, point, truth)
            points.append(replace(point, time_us=seconds * 1e6 * math.exp(noise * random.standard_normal())))
        made.append(replace(one, points=tuple(points)))
    return tuple(made)


@pytest.fixture(scope="module")
def base() -> Profile:
    return load_profile("a100-80gb-sxm")


@pytest.fixture(scope="module")
def curves(base: Profile) -> tuple[Curve, ...]:
    shapes = [curve(f"ar{n}", "all_reduce", 1, n) for n in (2, 4, 8)] + [curve("ag8", "all_gather", 1, 8)]
    shapes += [curve(f"ar{n}n", "all_reduce", n, 8 * n) for n in (2, 4)]
    return measured(shapes, base.replaced(**TRUTH), noise=0.01)


def test_a_fit_finds_the_constants_that_made_the_data(base: Profile, curves: tuple[Curve, ...]) -> None:
    names = [name.replace("__", ".") for name in TRUTH]
    found = fit_network(points_of([setting_of(one) for one in curves], base), base, names)
    for one in found.constants:
        assert one.told, one.name
        truth = TRUTH[one.name.replace(".", "__")]
        assert abs(one.value - truth) < max(4 * one.error, 0.03 * truth), one.name
    assert max(found.errors_by_group().values()) < 0.02


def test_what_no_data_tell_stays_at_its_prior_and_is_marked(base: Profile, curves: tuple[Curve, ...]) -> None:
    """Curves of one node say nothing about the network between nodes."""
    inside = [setting_of(one) for one in curves if one.nodes == 1]
    found = {one.name: one for one in fit_network(points_of(inside, base), base).constants}
    for name in ("network.inter_latency", "network.hop", "network.nvls_efficiency", "message.launch"):
        assert not found[name].told
        assert found[name].value == base[name]
        assert not found[name].changed
    assert found["network.intra_efficiency"].told
    assert set(found["network.intra_efficiency"].groups) == {"ar2", "ar4", "ar8", "ag8"}


def test_arrays_and_single_points_forecast_alike(base: Profile, curves: tuple[Curve, ...]) -> None:
    """Two ways to the same answer."""
    profile = base.replaced(**TRUTH, network__ring_overlap=0.75, network__edge_steps=0.5, exchange__mixing=1.0)
    settings = [setting_of(one) for one in (*curves, curve("a2a", "alltoall", 2, 16), curve("p2p", "sendrecv", 2, 2))]
    points = points_of(settings, profile)
    single = [predicted_s(setting, point, profile)[0] for setting in settings for point in setting.curve.usable]
    assert forecast_points(points, profile) == pytest.approx(single, rel=1e-12)


def test_calibration_writes_a_profile_that_loads(base: Profile, curves: tuple[Curve, ...], tmp_path: Path) -> None:
    found = calibrate(Results(curves, files=("two.log",)), "mine")
    path = tmp_path / "mine.yaml"
    path.write_text(found.text, encoding="utf-8")
    profile = load_profile(str(path))
    assert profile.constants["network.wire_efficiency"].kind == "measured"
    assert "two.log" in profile.constants["network.hop"].source
    assert profile["gemm.forward"] == base["gemm.forward"]
    assert profile.traits.nccl == "2.8.4"
    points = points_of([setting_of(one) for one in curves], profile)
    assert np.abs(forecast_points(points, profile) / points.time_s - 1).mean() < 0.03
    assert {"inside"} <= set(profile.intervals)
    band = profile.intervals["inside"].band(1e6)
    assert 0.7 < band.low <= 1.0 <= band.high < 1.4


def test_a_change_of_the_machine_shows(base: Profile, curves: tuple[Curve, ...]) -> None:
    same = base.replaced(**TRUTH)
    cases, _ = cases_of(Results(curves), same)
    assert {one.verdict for one in changes(cases, same, 0.1)} == {"as before"}
    slower, _ = cases_of(Results(curves), base.replaced(**{**TRUTH, "network__wire_efficiency": 1.0}))
    verdicts = {(one.where, one.sizes): one.verdict for one in changes(slower, base, 0.1)}
    assert verdicts[("across nodes", "above 32.0 MiB")] == "slower"
    assert verdicts[("inside a node", "above 32.0 MiB")] == "as before"


def test_products_tell_the_constants_of_the_a100_set() -> None:
    """183 products on A100-PCIe: a ramp of about 128 steps, waves of 0.65, weight gradients at 0.95 of the forward rate
    (calibration/identify_a100.py step 1, by another fit)."""
    path = Path(__file__).resolve().parents[2] / "calibration" / "measured" / "gemm_a100_pcie.csv"
    with path.open(encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    layouts = {"TN": "forward", "NN": "dgrad", "NT": "wgrad"}
    records = [
        Record(
            "gemm",
            RunInfo(gpu=row["gpu"]),
            kind="kernel",
            dtype=row["dtype"],
            flops_per_s=float(row["tflop_per_s"]) * 1e12,
            params=(*((name, int(row[name])) for name in "mnk"), ("pass", layouts[row["layout"]])),
        )
        for row in rows
    ]
    data, left_out = kernel_data(records, load_catalog().gpu("A100-80GB-PCIe"))
    assert data is not None
    assert not left_out
    found = fit_kernels(data, load_profile("v100-sxm"))
    values = {one.name: one.value for one in found.told}
    assert values["gemm.ramp_k"] == pytest.approx(128, rel=0.25)
    assert values["gemm.wave_weight"] == pytest.approx(0.646, rel=0.15)
    assert values["gemm.wgrad"] / values["gemm.forward"] == pytest.approx(0.95, abs=0.02)
    assert np.abs(np.expm1(found.log_error)).mean() < 0.035
    assert "attention.flash_forward" not in values


def test_attention_and_memory_kernels_tell_theirs() -> None:
    gpu, base = load_catalog().gpu("A100-80GB-SXM"), load_profile("a100-80gb-sxm")
    truth = base.replaced(
        attention__flash_forward=0.6, attention__ramp=400.0, memory__efficiency=0.9, kernel__fixed=5e-6
    )
    shapes = [(1, 16, 2**k, d, mask) for k in range(8, 15) for d in (64, 128) for mask in ("causal", "full")]
    blank = [
        Record(
            "flash",
            kind="kernel",
            dtype="bf16",
            time_us=1.0,
            params=(("pass", "forward"), ("mask", mask), ("b", b), ("heads", heads), ("s", s), ("d", d)),
        )
        for b, heads, s, d, mask in shapes
    ]
    moved = [2.0**k for k in range(12, 32, 2)]
    params = (("pass", "forward"),)
    blank += [
        Record("gelu", kind="kernel", dtype="bf16", time_us=1.0, bandwidth_bytes_per_s=size * 1e6, params=params)
        for size in moved
    ]
    data, _ = kernel_data(blank, gpu)
    assert data is not None
    times = data.forecast(truth) * 1e6
    sizes = [None] * len(shapes) + moved
    real = [
        replace(one, time_us=float(t), bandwidth_bytes_per_s=None if size is None else size / (float(t) * 1e-6))
        for one, t, size in zip(blank, times, sizes, strict=True)
    ]
    data, _ = kernel_data(real, gpu)
    assert data is not None
    found = {one.name: one for one in fit_kernels(data, base).constants}
    for name in ("attention.flash_forward", "attention.ramp", "memory.efficiency", "kernel.fixed"):
        assert found[name].told, name
        assert found[name].value == pytest.approx(truth[name], rel=0.1), name
    assert not found["gemm.forward"].told


def test_intervals_are_replaced_in_a_file() -> None:
    one = Interval(0.8, (Band(65536.0, 0.9, 1.1), Band(math.inf, 0.95, 1.05)), 20, 'half of "them"')
    text = "name: x\n\nconstants:\n  gemm.forward: {value: 1}\n"
    first = with_intervals(text, {"inside": one})
    assert first.index("intervals:") < first.index("constants:")
    second = with_intervals(first, {"across": one})
    assert "inside:" not in second
    assert second.count("intervals:") == 1
    assert second.endswith("constants:\n  gemm.forward: {value: 1}\n")


HOP = {"network.hop": Prior(1e-5, 0.0, 2e-4)}


def hops(floor_s: float, count: int = 20) -> Data:
    """Times of 10 us that are forecast as a floor and a hop."""
    return Data(np.full(count, 1e-5), ("log",) * count, lambda p: np.full(count, floor_s + p["network.hop"]))


def test_a_prior_that_is_right_is_told_as_well(base: Profile) -> None:
    """The search starts at the answer, where neither errors nor steps may vanish: twenty times of 10 us, known to 3 %
    each, tell 5 us to 0.3/sqrt(20) us."""
    (one,) = fit_constants(hops(5e-6), base.replaced(network__hop=5e-6), HOP).constants
    assert one.told
    assert one.value == pytest.approx(5e-6, rel=1e-3)
    assert one.error == pytest.approx(0.3e-6 / math.sqrt(20), rel=0.1)


def test_a_constant_that_is_pushed_against_its_bound_is_told(base: Profile) -> None:
    """A floor of 10.4 us leaves nothing for a hop, which cannot be negative: 0, to less than its curvature says."""
    (one,) = fit_constants(hops(10.4e-6), base.replaced(network__hop=3e-6), HOP).constants
    assert (one.told, one.value) == (True, 0.0)
    assert one.error < 0.3e-6 / math.sqrt(20)
    (hopeless,) = fit_constants(hops(1.0), base.replaced(network__hop=3e-6), HOP).constants
    assert not hopeless.told


@pytest.mark.filterwarnings("error")
def test_errors_stay_finite_whatever_a_search_tries(base: Profile) -> None:
    forecasts = np.array([0.0, np.inf, np.nan, -1.0, 1e-5])
    data = Data(np.full(5, 1e-5), ("log",) * 5, lambda p: forecasts)
    assert np.isfinite(data.log_error(base)).all()
    assert data.log_error(base)[-1] == 0.0


HEADER = (
    "curve_id,source,gpu,nodes,gpus,net,nccl_version,op,algo,proto,dtype,"
    "size_bytes,time_us,algbw_gbps,busbw_gbps,inplace"
)


def table(tmp_path: Path, *rows: str) -> Path:
    path = tmp_path / "curves.csv"
    path.write_text("\n".join((HEADER, *rows)) + "\n", encoding="utf-8")
    return path


def test_rows_that_contradict_themselves_or_stand_out_are_marked(tmp_path: Path) -> None:
    """The importers' rules: 3 % between size / time and the printed rate; a spike takes 1.3 times the next size."""
    head = "c,s,A100-SXM4-80GB,1,8,NVLink,2.8.4,all_reduce,auto,auto,float"
    path = table(
        tmp_path,
        f"{head},1024,50,0.02,0.04,0",
        f"{head},2048,30,0.07,0.12,0",
        f"{head},1048576,100,20,35,0",
        f"{head},2097152,abc,,,0",
    )
    (found,) = read_curves(path)
    problems = [point.problem for point in found.points]
    assert problems[0] is not None
    assert problems[0].startswith("spike")
    assert problems[1] is None
    assert problems[2] is not None
    assert problems[2].startswith("contradicts itself")
    assert problems[3] == "no time that can be: time_us is 'abc'; write microseconds above 0, such as 35.2"


def test_a_file_without_the_columns_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("curve_id,gpu\na,b\n", encoding="utf-8")
    with pytest.raises(DataError, match="lacks the columns nodes, gpus"):
        read_curves(path)


def test_spikes_look_at_each_side_alone() -> None:
    points = [CurvePoint(1.0, 10.0), CurvePoint(2.0, 20.0, True), CurvePoint(2.0, 9.0), CurvePoint(4.0, 12.0, True)]
    assert [point.problem is not None for point in marked(points)] == [False, True, False, False]


def test_results_without_anything_to_learn_are_refused(tmp_path: Path) -> None:
    path = table(tmp_path)
    with pytest.raises(DataError, match="no measurement"):
        read_results([path], Stated())


def test_several_gpus_in_one_calibration_are_refused(curves: tuple[Curve, ...]) -> None:
    mixed = (curves[0], replace(curves[1], gpu="H100-SXM5-80GB"))
    with pytest.raises(DataError, match="several GPUs"):
        calibrate(Results(mixed), "x")
