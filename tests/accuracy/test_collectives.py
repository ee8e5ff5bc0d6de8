"""Measured collectives: what the shipped profiles reach, on curves that told them nothing and on all of them.

The curves are calibration/measured/collectives.csv, each with its public source; spikes (slower than 1.3 times the next
larger size) are left out. Figures in brackets are those of the day when a test was written.
"""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from traincast.calibration.conformal import Residual, conformal_interval
from traincast.calibration.network_fit import PRIORS
from traincast.profile import load_profile
from traincast.validate.collectives import (
    CollectiveReport,
    CurveScore,
    collective_files,
    read_collectives,
    validate_collectives,
    without_launch,
)

SCRIPTS = Path(__file__).resolve().parents[2] / "calibration"


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, SCRIPTS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def logs() -> ModuleType:
    return script("fit_public_logs")


@pytest.fixture(scope="module")
def report() -> CollectiveReport:
    """As a CSV that does not say who launched."""
    return validate_collectives(without_launch(read_collectives(collective_files())))


@pytest.fixture(scope="module")
def curves(report: CollectiveReport) -> dict[str, CurveScore]:
    return {one.curve_id: one for one in report.curves}


@pytest.mark.parametrize("name", ["a100_4n_echo", "a100_8n_echo", "a100_16n_echo"])
def test_fitted_on_one_and_two_nodes_forecast_4_to_16(curves: dict[str, CurveScore], name: str) -> None:
    """A100 with 8 HDR NICs, fitted on 8 and 16 GPUs: at most 17 % on 32, 64 and 128 over all sizes (7.7, 8.8, 9.2),
    10 % from 64 MB on (2.4, 4.8, 5.5)."""
    assert load_profile("a100-azure-ndv4").fitted_curves == {"a100_8g_echo", "a100_2n_echo"}
    one = curves[name]
    assert one.status == "scored"
    assert one.mean_abs_pct is not None
    assert one.large_mean_abs_pct is not None
    assert one.mean_abs_pct <= 17
    assert one.large_mean_abs_pct <= 10


@pytest.mark.parametrize("ranks", range(2, 9))
def test_nvls_on_two_to_eight_h100(curves: dict[str, CurveScore], ranks: int) -> None:
    """github.com/NVIDIA/nccl issue 1455, NCCL_ALGO=NVLS at 4 GiB, no point of it fitted: within 10 % (worst 7.6)."""
    one = curves[f"h100_{ranks}g_nvls_4G_1455"]
    assert one.status == "scored"
    assert one.mean_abs_pct is not None
    assert one.mean_abs_pct <= 10


def test_median_over_all_curves(report: CollectiveReport) -> None:
    """nccl-tests curves of catalogued GPUs with at least 8 sizes: median of their mean errors at most 12 % (7.5 over
    all, 9.1 over those that told no constant)."""
    found = report.overall()
    assert found["curves"] >= 140  # type: ignore[operator]
    assert found["median_pct"] <= 12  # type: ignore[operator]
    assert found["scored_curves"] >= 60  # type: ignore[operator]
    assert found["scored_median_pct"] <= 12  # type: ignore[operator]


@pytest.mark.parametrize(
    ("name", "most_pct"),
    [
        ("abci_a_4n_all_reduce", 12),
        ("h100_16n_partial", 12),
        ("h100_ndr_128n_ring_ll128", 20),
        ("h100_ndr_4n_gjaion", 17),
        ("sm_100_GB200_64g_x1_all_reduce_xla", 15),
        ("sm_100_GB200_72g_x1_all_gather_xla", 15),
        ("sm_103_72g_x1_reduce_scatter_xla", 15),
    ],
)
def test_further_transfers(curves: dict[str, CurveScore], name: str, most_pct: float) -> None:
    """Two to four nodes (9.5), two to sixteen (7.6), two to 128 with a forced ring (15.9), two to four of H100 (14.9),
    36 to 64 and 72 GPUs of a rack (9.9, 7.9, 10.9)."""
    one = curves[name]
    assert one.status == "scored"
    assert one.mean_abs_pct is not None
    assert one.mean_abs_pct <= most_pct


@pytest.mark.parametrize(
    "name",
    [
        # three settings of the same cluster differ by 7 to 17 % at 8 nodes; this one raises NCCL_MIN_CTAS (18.6 %)
        "h100_ndr_8n_gjaion_ctas24",
        # all-to-all jumps from 12 us on 16 GPUs to 51 on 64, which 8 to 18 GPUs do not show (35 %)
        "sm_103_64g_x1_alltoall_xla",
        # a fabric between racks that no other curve shows: 180 us where NDR nodes have 70 (47 %)
        "gb200v3_128g_2rack_oci",
    ],
)
@pytest.mark.xfail(reason="not told by fits on one and two nodes", strict=True)
def test_what_stays_beyond_17_percent(curves: dict[str, CurveScore], name: str) -> None:
    mean = curves[name].mean_abs_pct
    assert mean is not None
    assert mean <= 17


def test_shipped_intervals_hold_what_they_promise(report: CollectiveReport) -> None:
    """The 80 % intervals hold 70 to 90 % of the points that told no constant (79)."""
    covered = report.overall()["covered_pct"]
    assert isinstance(covered, float)
    assert 70 <= covered <= 90


@pytest.mark.parametrize("kind", ["inside", "across"])
def test_intervals_hold_for_a_log_that_they_have_not_seen(kind: str) -> None:
    """Each log left out in turn: the interval of the others holds 70 to 90 % of its points (78 inside, 73 across)."""
    residuals: list[Residual] = script("fit_intervals").held_out()[kind]
    names = sorted({one.group for one in residuals})
    inside = 0
    for name in names:
        interval = conformal_interval([one for one in residuals if one.group != name], "others")
        assert interval is not None
        for one in residuals:
            band = interval.band(one.size_bytes)
            inside += one.group == name and band.low <= one.ratio <= band.high
    assert 0.70 <= inside / len(residuals) <= 0.90


def check_fit(logs: ModuleType, name: str) -> None:
    """The profile's file holds what the fit finds, to the digits that it prints."""
    fabric = next(one for one in logs.FABRICS if one.name == name)
    found = logs.fit(fabric, logs.all_settings())
    shipped = load_profile(name)
    assert shipped.fitted_curves == set(found.errors_by_group())
    for one in found.told:
        assert shipped.constants[one.name].kind == "measured", one.name
        tolerance = 0.02 * abs(one.value) + 0.02 * PRIORS[one.name].spread
        assert abs(shipped[one.name] - one.value) <= tolerance, one.name


@pytest.mark.parametrize("name", ["a100-azure-ndv4", "h100-ndr8"])
def test_profiles_hold_what_the_logs_tell(logs: ModuleType, name: str) -> None:
    check_fit(logs, name)


@pytest.mark.slow
def test_all_profiles_hold_what_the_logs_tell(logs: ModuleType) -> None:
    for fabric in logs.FABRICS:
        if fabric.curves:
            check_fit(logs, fabric.name)


def test_without_nvls_an_h100_node_is_a_ring(report: CollectiveReport) -> None:
    """365 GB/s bus bandwidth of a ring against 480 with NVLink SHARP on 8 H100 (nccl-tests issue 212)."""
    from traincast.calibration.network_model import constants_of, setting_of
    from traincast.costs.collectives import collective_seconds

    setting = next(setting_of(one) for one in read_collectives(collective_files()) if one.id == "h100_8g_ring_4G_1455")
    rates = {}
    for name in ("h100-ndr8", "h100-ndr8-without-nvls"):
        c = constants_of(setting, load_profile(name))
        rates[name] = 2 * 7 / 8 * 2**33 / collective_seconds("all_reduce", 2.0**33, setting.place.span, c) / 1e9
    assert rates["h100-ndr8"] == pytest.approx(480, rel=0.05)
    assert rates["h100-ndr8-without-nvls"] == pytest.approx(365, rel=0.1)
