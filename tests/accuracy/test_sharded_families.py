"""Sharded data parallelism against measured steps: FSDP, FSDP2, ZeRO-1 in groups, DeepSpeed ZeRO-3.

Figures when written: llm-foundry 2.7 % over the 221 rows that no profile has seen (null 35.6 %), torchtitan bf16 1.7 %,
torchao bf16 5.2 %, InternEvo 1.1 %, SC21's ZeRO-3 6.6 % over four rows, one constant told by the two others.
"""

from collections.abc import Callable, Iterable

import pytest

from traincast.validate import PublishedRow, ValidationReport, published_files, read_published, validate_rows
from traincast.validate.place import fitted_profiles
from traincast.validate.score import RowScore


def validated(families: list[str], wanted: Callable[[PublishedRow], bool] = lambda row: True) -> ValidationReport:
    return validate_rows([row for row in read_published(published_files(), families) if wanted(row)])


def error(row: RowScore) -> float:
    assert row.predicted_s is not None
    assert row.measured_s is not None
    return row.predicted_s / row.measured_s - 1


def mean_error(rows: Iterable[RowScore]) -> float:
    errors = [abs(error(row)) for row in rows]
    return sum(errors) / len(errors)


def scored(report: ValidationReport) -> list[RowScore]:
    return [row for row in report.rows if row.status == "scored"]


@pytest.mark.slow
def test_llm_foundry() -> None:
    """Three revisions of the stack, told apart by their pages; each within 5 %, and H100 within 5 %."""
    report = validated(["foundry"])
    (family,) = report.families
    assert (family.n, family.scored, family.fitted) == (275, 221, 54)
    assert family.mape_pct <= 5
    assert abs(family.bias_pct) <= 1
    assert family.spearman >= 0.99
    for part in PARTS:
        assert mean_error(row for row in scored(report) if number(row) in part) <= 0.05


PARTS = (range(4, 71), range(80, 217), range(217, 301), range(302, 450))
"""H100 and A100 in January 2024, A100 in April and in February 2023."""


def number(row: RowScore) -> int:
    return int(row.id.removeprefix("foundry-"))


def test_recomputation_tells_the_revision() -> None:
    """The 7B with full recomputation on eight A100-80GB at 1,024 tokens, before and after it stopped early (PyTorch
    2.1), and the 125M, which recomputes nothing and took as long: the rows differ in their source only."""
    times = {row.id[-4:]: row for row in validated(["foundry"], lambda row: row.id[-4:] in REPEATED).rows}
    for earlier, later in (REPEATED[:2], REPEATED[2:]):
        measured, predicted = (
            getattr(times[later], name) / getattr(times[earlier], name) for name in ("measured_s", "predicted_s")
        )
        assert predicted == pytest.approx(measured, abs=0.02)


REPEATED = ("0244", "0097", "0300", "0138")


def bf16_rows(family: str) -> list[RowScore]:
    return scored(validated([family], lambda row: row.text("precision") == "bf16"))


def test_torchtitan_in_bf16() -> None:
    """Four rows that told no constant; every one within 5 %."""
    rows = bf16_rows("torchtitan")
    assert {row.id for row in rows} == {"titan-old-0007", "titan-old-0009", "titan-old-0010", "titan-old-0011"}
    assert max(abs(error(row)) for row in rows) <= 0.05


@pytest.mark.xfail(
    strict=True, reason="5.2 %: 0.2 % of it were sums of the embedding's gradient that FSDP does not make"
)
def test_torchao_in_bf16_to_the_aim() -> None:
    """The H100 row that told no constant, within 5 % as those of torchtitan."""
    (row,) = bf16_rows("torchao")
    assert row.id == "torchao-0001"
    assert abs(error(row)) <= 0.05


def test_torchtitan_and_torchao_in_fp8() -> None:
    """Tensor-wise and row-wise scales, TP 1 and 8, one node to 512 GPUs, without context parallelism: no row told what
    a cast, a product in fp8 or one with a scale for each row costs (when written: 6.6 % on H100, 14 % on B200)."""
    report = validated(["torchtitan", "torchao"], lambda row: "fp8" in row.text("precision") and row.count("cp") == 1)
    rows = scored(report)
    blackwell = {f"torchao-{number:04d}" for number in (5, 6, 7, 8)}
    assert len(rows) == 13
    assert mean_error(row for row in rows if row.id not in blackwell) <= 0.08
    assert mean_error(row for row in rows if row.id in blackwell) <= 0.15


@pytest.mark.xfail(strict=True, reason="14 %: cards with a power limit that is not stated; see residual_notes.yaml")
def test_torchao_on_b200_to_the_aim() -> None:
    report = validated(["torchao"], lambda row: row.text("gpu").startswith("B200"))
    assert mean_error(scored(report)) <= 0.08


def test_internevo() -> None:
    """ZeRO-1 over all replicas and in groups, TP 1 and 2, 8 to 1,024 GPUs (when written: 1.4 %, at worst 2.8 %)."""
    report = validated(["internevo"])
    (family,) = report.families
    assert (family.scored, family.fitted) == (13, 4)
    assert family.mape_pct <= 3
    assert max(abs(error(row)) for row in scored(report)) <= 0.05


def test_internevo_over_1024_replicas() -> None:
    """Broadcasts of 162 matrices, each down a chain of 1,024 ranks: 3 s of the step, told by no row."""
    (row,) = validated(["internevo"], lambda row: row.id == "internevo_tp1_z-1_1024").rows
    assert abs(error(row)) <= 0.12


PAIRS = (("174B_384", "174B_384"), ("174B_768", "174B_768"), ("174B_1536", "174B_1536"))
LARGE = (("529B_640", "529B_560"), ("529B_1120", "529B_1120"), ("529B_2240", "529B_2240"))


@pytest.fixture(scope="module")
def zero_3() -> list[RowScore]:
    return list(validated(["sc21"], lambda row: row.id.startswith("sc21_t2_ZeRO-3")).rows)


@pytest.fixture(scope="module")
def table_2() -> dict[str, RowScore]:
    return {row.id: row for row in validated(["sc21"], lambda row: row.id.startswith("sc21_t2_")).rows}


def test_deepspeed_zero_3(zero_3: list[RowScore]) -> None:
    """One constant, told by two of the six rows; the four others within 12 % on average."""
    assert [row.status for row in zero_3].count("scored") == 4
    assert mean_error(row for row in zero_3 if row.status == "scored") <= 0.08
    assert max(abs(error(row)) for row in zero_3) <= 0.12


@pytest.mark.slow
def test_every_pair_of_table_2_is_in_order(table_2: dict[str, RowScore]) -> None:
    """SC21, §5.2: PTD-P is faster than ZeRO-3 at every number of GPUs."""
    for zero, ptd in PAIRS + LARGE:
        slow, fast = table_2[f"sc21_t2_ZeRO-3_{zero}"], table_2[f"sc21_t2_PTD_{ptd}"]
        gpus = int(zero.rpartition("_")[2]) / int(ptd.rpartition("_")[2])  # on 640 GPUs the batch grows with them
        assert slow.predicted_s is not None
        assert fast.predicted_s is not None
        assert slow.predicted_s > gpus * fast.predicted_s / (2560 / 2240 if gpus > 1 else 1)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["174B_768", "529B_1120"])
def test_doubling_gpus_at_a_fixed_batch_widens_the_gap(table_2: dict[str, RowScore], name: str) -> None:
    """SC21, §5.2: by doubling the GPUs at the same batch PTD-P outperforms ZeRO-3 by 70 % (the two rows of ZeRO-3 here
    told its one constant)."""
    slow, fast = table_2[f"sc21_t2_ZeRO-3_{name}"], table_2[f"sc21_t2_PTD_{name}"]
    assert slow.predicted_s is not None
    assert fast.predicted_s is not None
    assert slow.predicted_s / fast.predicted_s == pytest.approx(1.70, abs=0.15)


def test_no_profile_has_seen_more_than_a_quarter_of_a_family() -> None:
    for family in ("foundry", "torchtitan", "torchao", "internevo", "sc21"):
        rows = read_published(published_files(), [family])
        assert sum(row.id in fitted_profiles() for row in rows) <= len(rows) / 4
