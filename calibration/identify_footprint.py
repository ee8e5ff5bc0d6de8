"""Identify what stacks take beside tensors, and how their logs call a peak: `python calibration/identify_footprint.py`.

Each step uses a quarter of a family's peaks at most; the profiles name the rows, and no test scores their peaks, nor
those of runs that repeat them.

1. the reserve of Megatron-DeepSpeed on Jean Zay: what three peaks of BLOOM's sizing runs are above the other items;
2. what a peak of NVIDIA's MLPerf 5.0 logs is: every fourth of the twelve that are stated, from the first;
3. what a peak of the zero-bubble paper is: the twelve rows of the 1.5B model, which told the time of a pass as well.

A reading is what the driver shows, the allocator reserved or tensors took, on the fullest GPU or the first stage, in GB
or GiB: twelve of them, of which steps 2 and 3 take the one with the least mean error.
"""

import statistics
from collections.abc import Iterable
from dataclasses import replace
from itertools import product

from traincast.forecast import memory_of
from traincast.lower import Job, lower
from traincast.memory import MemoryEstimate, reported_peak
from traincast.memory.reading import UNITS
from traincast.profile import Traits
from traincast.schedule import AUTOMATIC
from traincast.validate import PublishedRow, published_files, read_published
from traincast.validate.report import prepare_row

RESERVE = ("bloom_pre_021", "bloom_pre_026", "bloom_pre_028")
REPEATED = ("bloom_pre_035", "bloom_pre_057")
"""Runs of the shapes of bloom_pre_021 and 026 again, with the same peaks."""

Reading = tuple[str, str, str]
READINGS: tuple[Reading, ...] = tuple(product(("device", "reserved", "allocated"), ("GB", "GiB"), ("fullest", "first")))
"""Kind, unit and stage, as `Traits` has them."""


def with_peaks(family: str) -> list[PublishedRow]:
    """A family's rows that state a peak, in the order of the file."""
    return [row for row in read_published(published_files(), [family]) if row.number("peak_memory_gb") is not None]


def mlperf_told() -> list[PublishedRow]:
    """Step 2: every fourth peak."""
    return with_peaks("mlperf")[::4]


def zero_bubble_told() -> list[PublishedRow]:
    """Step 3: one of four models."""
    return [row for row in with_peaks("zero_bubble") if row.id.startswith("zb_t4_1.5B")]


def told() -> frozenset[str]:
    """All rows whose peaks told something, or repeat one that did."""
    return frozenset((*RESERVE, *REPEATED, *(row.id for row in (*mlperf_told(), *zero_bubble_told()))))


def memory(job: Job) -> MemoryEstimate:
    """Memory of a job in the order that runs."""
    order = lower(job).program.schedule if job.recipe.schedule in AUTOMATIC else None
    return memory_of(job, order)


def reserve() -> dict[str, float]:
    """Step 1 [bytes]: the mean of what three peaks, in the unit and kind of the profile, are above all other items."""
    rows = {row.id: row for row in with_peaks("bloom")}
    found = []
    for name in RESERVE:
        job = prepare_row(rows[name]).options[0].job
        bare = replace(job, profile=job.profile.replaced(footprint__reserve=0.0))
        peak = rows[name].number("peak_memory_gb") or 0.0
        found.append((peak - reported_peak(memory(bare), job.profile.traits)) * UNITS[job.profile.traits.peak_unit])
    return {"footprint.reserve": statistics.fmean(found)}


def best_reading(rows: Iterable[PublishedRow]) -> tuple[Reading, float]:
    """The reading of rows' peaks with the least mean error, and that."""
    pairs = [(memory(prepare_row(row).options[0].job), row.number("peak_memory_gb") or 0.0) for row in rows]

    def error(one: Reading) -> float:
        traits = Traits(peak_kind=one[0], peak_unit=one[1], peak_stage=one[2])
        return statistics.fmean(abs(reported_peak(found, traits) / peak - 1) for found, peak in pairs)

    best = min(READINGS, key=error)
    return best, error(best)


def main() -> None:
    """Run the steps and print what they say."""
    for name, value in reserve().items():
        print(f"{name:36s} {value / 2**30:.2f} GiB")
    for family, rows in (("mlperf", mlperf_told()), ("zero_bubble", zero_bubble_told())):
        reading, error = best_reading(rows)
        print(f"{family:12s} {' '.join(reading):24s} {100 * error:.1f} % mean of {', '.join(row.id for row in rows)}")


if __name__ == "__main__":
    main()
