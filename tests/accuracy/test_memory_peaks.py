"""Peaks that published rows state, as their stacks report them, and rows that ran and must not be refused."""

import statistics
from collections.abc import Sequence

import pytest

from traincast.memory import MemoryEstimate, MemoryJob, estimate_job, overheads_of, reported_peak
from traincast.validate import published_files, read_published
from traincast.validate.build import build_case
from traincast.validate.place import Place, place_of
from traincast.validate.rows import PublishedRow, RowSkippedError

# mean error of the rows that told no constant, percent, when written
PEAKS = {"bloom": 3.4, "mlperf": 0.9, "torchao": 8.3, "torchtitan": 11.2, "zero_bubble": 1.5}
ROWS = {"bloom": 30, "mlperf": 12, "torchao": 4, "torchtitan": 7, "zero_bubble": 36}

# of these families every row ran on the GPU that it names, with its states, batch and recomputation stated
RAN = ("bloom", "dgxc_h100", "foundry", "internevo", "korthikanti", "kwai_cp", "mlperf", "nemo_cp", "sc21", "torchao",
       "torchtitan", "vtrain", "vtrain_single", "zero_bubble")  # fmt: skip


def estimates(row: PublishedRow) -> tuple[Place, list[MemoryEstimate]]:
    """A row's place, and the memory of every candidate that it leaves open."""
    place = place_of(row)
    case = build_case(row, place.profile)
    jobs = [MemoryJob(case.model, case.mesh, one.recipe, overheads_of(place.profile)) for one in case.candidates]
    return place, [estimate_job(job, place.gpu.memory_bytes) for job in jobs]


def errors(family: str, column: Sequence[PublishedRow]) -> list[float]:
    """Predicted over stated peak, minus 1, of a family's rows that told nothing."""
    found = []
    for row in column:
        peak = row.number("peak_memory_gb")
        if row.family != family or peak is None:
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


@pytest.mark.parametrize("family", PEAKS)
def test_peaks_of_a_family_are_within_12_percent(rows: tuple[PublishedRow, ...], family: str) -> None:
    """What the driver shows, the allocator reserved or tensors took, as its profile says (`Traits.peak_kind`).

    Where a source does not say which (mlperf, zero_bubble), the profile's reading was chosen by these peaks themselves.
    """
    found = errors(family, rows)
    assert len(found) >= ROWS[family]
    assert statistics.fmean(map(abs, found)) <= 0.12


@pytest.mark.parametrize("family", ["bloom", "mlperf", "zero_bubble"])
def test_peaks_of_megatron_stacks_are_within_5_percent(rows: tuple[PublishedRow, ...], family: str) -> None:
    """The aim; torchtitan's compiled graphs keep less than its list of saved operators says (torchao on B200, +14 %),
    and its pipelines hold more (405B, -7 to -21 %, microbatches not stated)."""
    assert statistics.fmean(map(abs, errors(family, rows))) <= 0.05


@pytest.mark.xfail(reason="8.3 % and 11.2 %: see above; nothing in the rows says what the compiler keeps, nor how many"
                   " microbatches the pipelines had")  # fmt: skip
def test_peaks_of_torchtitan_are_within_5_percent(rows: tuple[PublishedRow, ...]) -> None:
    assert max(statistics.fmean(map(abs, errors(family, rows))) for family in ("torchao", "torchtitan")) <= 0.05


def test_llama_405b_of_mlperf_is_met_row_by_row(rows: tuple[PublishedRow, ...]) -> None:
    """Twelve rows on H100, H200 and GB200, DP 4 to 64: parameters in fp8, on Hopper in both orders; gradients in bf16;
    12 bytes of optimiser over the replicas; activations of 127 layer passes. Without the copies of Hopper H200 and
    GB200 would be alike: they are 12.7 GiB apart."""
    assert max(map(abs, errors("mlperf", rows))) <= 0.06


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
