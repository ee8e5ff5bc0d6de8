"""Peaks that published rows state, as their stacks report them, and rows that ran and must not be refused."""

import statistics
from collections.abc import Sequence
from types import ModuleType

import pytest
from calibration_scripts import script

from traincast.memory import MemoryEstimate, MemoryJob, estimate_job, overheads_of, reported_peak
from traincast.profile import load_profile
from traincast.validate import published_files, read_published
from traincast.validate.build import build_case
from traincast.validate.place import Place, place_of
from traincast.validate.rows import PublishedRow, RowSkippedError

# how many rows told nothing, and their mean error in percent when written; those of zero_bubble: test_zero_bubble.py
PEAKS = {"bloom": (28, 3.6), "mlperf": (9, 0.6), "torchao": (6, 9.9), "torchtitan": (7, 11.2)}

# of these families every row ran on the GPU that it names, with its states, batch and recomputation stated
RAN = ("bloom", "dgxc_h100", "foundry", "internevo", "korthikanti", "kwai_cp", "mlperf", "nemo_cp", "sc21", "torchao",
       "torchtitan", "vtrain", "vtrain_single", "zero_bubble")  # fmt: skip


def estimates(row: PublishedRow) -> tuple[Place, list[MemoryEstimate]]:
    """A row's place, and the memory of every candidate that it leaves open."""
    place = place_of(row)
    case = build_case(row, place.profile)
    jobs = [MemoryJob(case.model, case.mesh, one.recipe, overheads_of(place.profile)) for one in case.candidates]
    return place, [estimate_job(job, place.gpu.memory_bytes) for job in jobs]


def errors(family: str, column: Sequence[PublishedRow], told: frozenset[str]) -> list[float]:
    """Predicted over stated peak, minus 1, of a family's rows that told nothing."""
    found = []
    for row in column:
        peak = row.number("peak_memory_gb")
        if row.family != family or peak is None or row.id in told:
            continue
        try:
            place, (one, *_) = estimates(row)
        except RowSkippedError:
            continue
        if row.id not in place.profile.fitted_rows:
            found.append(reported_peak(one, place.profile.traits) / peak - 1)
    return found


@pytest.fixture(scope="module")
def rows() -> tuple[PublishedRow, ...]:
    return read_published(published_files())


@pytest.fixture(scope="module")
def identify() -> ModuleType:
    return script("identify_footprint")


@pytest.fixture(scope="module")
def told(identify: ModuleType) -> frozenset[str]:
    found: frozenset[str] = identify.told()
    return found


def test_the_reserve_is_what_its_script_finds(identify: ModuleType) -> None:
    """Three peaks of BLOOM's sizing runs told it, and their profile names them."""
    profile = load_profile("a100-jeanzay-megatron-deepspeed2022")
    assert profile["footprint.reserve"] == pytest.approx(identify.reserve()["footprint.reserve"], rel=0.01)
    assert set(identify.RESERVE) <= profile.fitted_rows


def test_runs_that_repeat_a_told_one_are_known(identify: ModuleType, rows: tuple[PublishedRow, ...]) -> None:
    """The same peak forecast and stated: nobody scores them."""
    peaks = {}
    for row in rows:
        if row.id in (*identify.RESERVE, *identify.REPEATED):
            place, (one, *_) = estimates(row)
            peaks[row.id] = reported_peak(one, place.profile.traits), row.number("peak_memory_gb")
    for name in identify.REPEATED:
        assert peaks[name] in [peaks[one] for one in identify.RESERVE]


def test_the_reading_of_mlperf_is_what_a_quarter_of_its_peaks_says(identify: ModuleType) -> None:
    """Every fourth of twelve, of both GPU generations, chooses among twelve readings; their profiles name them."""
    reading, error = identify.best_reading(identify.mlperf_told())
    assert [row.id for row in identify.mlperf_told()] == [f"mlperf-5.0-{n:04d}" for n in (1, 5, 9)]
    for name in ("h100-megatronbridge2025", "blackwell-nemo-megatroncore2025", "gb300-nemo-megatroncore2025"):
        traits = load_profile(name).traits
        assert reading == (traits.peak_kind, traits.peak_unit, traits.peak_stage)
    assert error <= 0.025


@pytest.mark.parametrize("family", PEAKS)
def test_peaks_of_a_family_are_within_12_percent(
    rows: tuple[PublishedRow, ...], told: frozenset[str], family: str
) -> None:
    """What the driver shows, the allocator reserved or tensors took, as its profile says (`Traits.peak_kind`)."""
    found = errors(family, rows, told)
    assert len(found) == PEAKS[family][0]
    assert statistics.fmean(map(abs, found)) <= 0.12


@pytest.mark.parametrize("family", ["bloom", "mlperf"])
def test_peaks_of_megatron_stacks_are_within_5_percent(
    rows: tuple[PublishedRow, ...], told: frozenset[str], family: str
) -> None:
    """The aim; torchtitan's compiled graphs keep less than its list of saved operators says (torchao on B200, +14 %),
    and its pipelines hold more (405B, -7 to -21 %, microbatches not stated)."""
    assert statistics.fmean(map(abs, errors(family, rows, told))) <= 0.05


@pytest.mark.xfail(reason="9.9 % and 10.8 %: see above; nothing in the rows says what the compiler keeps, nor how many"
                   " microbatches the pipelines had")  # fmt: skip
def test_peaks_of_torchtitan_are_within_5_percent(rows: tuple[PublishedRow, ...], told: frozenset[str]) -> None:
    assert max(statistics.fmean(map(abs, errors(family, rows, told))) for family in ("torchao", "torchtitan")) <= 0.05


def test_llama_405b_of_mlperf_is_met_row_by_row(rows: tuple[PublishedRow, ...], told: frozenset[str]) -> None:
    """Nine rows on H100, H200 and GB200, DP 4 to 64: parameters in fp8, on Hopper in both orders; gradients in bf16;
    12 bytes of optimiser over the replicas; activations of 127 layer passes. Without the copies of Hopper H200 and
    GB200 would be alike: they are 12.7 GiB apart."""
    assert max(map(abs, errors("mlperf", rows, told))) <= 0.06


def test_what_ran_is_not_refused(rows: tuple[PublishedRow, ...]) -> None:
    """A row of these families has a candidate that fits, or is borderline and within the GPU."""
    refused = []
    for row in rows:
        if row.family not in RAN:
            continue
        try:
            _, found = estimates(row)
        except RowSkippedError:
            continue
        least = min(found, key=lambda one: one.worst.total_bytes)
        if least.worst.total_bytes > least.limit_bytes:
            refused.append(row.id)
    assert refused == []
