"""The residual study: where the error of step time stays, and what it goes with, a family at a time.

The rows are those of `scenarios/published/`, the forecasts those of `traincast validate`; everything that is said
about a family is computed from its scored rows, but for its note, which is kept as data.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from traincast.errors import UsageError
from traincast.report.residuals_axes import ALWAYS_DRAWN, AXES, Axis, replicas, varying, varying_categories, word
from traincast.report.residuals_stats import Dependence, dependences, share_between
from traincast.report.tables import Table, render_csv
from traincast.validate.studies import Study, studies_of

if TYPE_CHECKING:
    from traincast.validate import FamilyScore, PublishedRow, RowScore, ValidationReport

Standing = Literal["scored", "fitted", "shown", "no forecast"]

CSV_NAME, PAGE_NAME = "residuals.csv", "residuals.md"
OUTLIER_PCT = 15.0
_COUNTS = ("gpus", "tp", "pp", "cp", "dp", "vpp", "microbatch", "global_batch", "hidden", "layers", "seq")
_WORDS = ("schedule", "recompute", "zero_stage", "precision", "cp_kind")
CSV_COLUMNS = (
    "id", "family", "model", "gpu", *_COUNTS, *_WORDS, "measured_s", "predicted_s", "error_pct",
    "executed_flops_per_gpu", "status",
)  # fmt: skip


@dataclass(frozen=True)
class Residual:
    """A published row and its score."""

    row: "PublishedRow"
    score: "RowScore"

    @property
    def standing(self) -> Standing:
        """How it counts; `shown` has an error that does not."""
        if self.score.error_pct is None:
            return "no forecast"
        return "shown" if self.score.status == "skipped" else self.score.status

    @property
    def error_pct(self) -> float:
        """Predicted over measured step time, less one, in percent; there is a forecast."""
        found = self.score.error_pct
        assert found is not None, f"{self.score.id} has no forecast"
        return found


@dataclass(frozen=True)
class FamilyResiduals:
    """A family's rows with what their error goes with.

    `axes` are the numbers that vary among its scored rows, `category` the column of words that leaves least of the
    error's variance inside its groups (empty: none varies), `category_share` the adjusted share between them, `note`
    what is known to be missing (may be empty).
    """

    score: "FamilyScore"
    residuals: tuple[Residual, ...]
    studies: tuple[Study, ...]
    axes: tuple[Axis, ...]
    dependences: tuple[Dependence, ...]
    category: str
    category_share: float
    note: str

    @property
    def name(self) -> str:
        """The family."""
        return self.score.family

    @property
    def picture(self) -> str:
        """Name of its figure."""
        return f"residuals_{self.name}.png"

    def standing(self, standing: Standing) -> list[Residual]:
        """The rows that stand so, in the order of the file."""
        return [one for one in self.residuals if one.standing == standing]

    @property
    def outliers(self) -> list[Residual]:
        """Scored rows beyond 15 %, the worst first."""
        beyond = [one for one in self.standing("scored") if abs(one.error_pct) > OUTLIER_PCT]
        return sorted(beyond, key=lambda one: -abs(one.error_pct))

    @property
    def drawn(self) -> tuple[Axis, ...]:
        """Axes of its figure: parallel shape, microbatch, hidden size and sequence where they vary, and whatever the
        error goes with most.
        """
        names = {axis.name for axis in self.axes}
        wanted = {name for name in ALWAYS_DRAWN if name != "gpus" or "dp" not in names}
        if self.dependences and self.dependences[0].beyond_chance:
            wanted.add(self.dependences[0].axis)
        return tuple(axis for axis in self.axes if axis.name in wanted)

    def as_dict(self) -> dict[str, Any]:
        """The family as JSON shows it."""
        return {
            **asdict(self.score),
            "dependences": [asdict(one) for one in self.dependences],
            "category": self.category or None,
            "category_share": self.category_share if self.category else None,
            "outliers": [one.score.id for one in self.outliers],
            "note": self.note or None,
        }


def study_residuals(
    report: "ValidationReport", rows: Sequence["PublishedRow"], notes: Mapping[str, str]
) -> tuple[FamilyResiduals, ...]:
    """The families of a validation; `rows` are those that it was given, in the same order."""
    pairs = [Residual(row, score) for row, score in zip(rows, report.rows, strict=True)]
    studies = studies_of(report.rows, rows)
    return tuple(
        _family(
            score,
            tuple(one for one in pairs if one.row.family == score.family),
            tuple(one for one in studies if one.family == score.family),
            notes.get(score.family, ""),
        )
        for score in report.families
    )


def _family(
    score: "FamilyScore", residuals: tuple[Residual, ...], studies: tuple[Study, ...], note: str
) -> FamilyResiduals:
    scored = [one for one in residuals if one.standing == "scored"]
    rows, errors = [one.row for one in scored], [one.error_pct for one in scored]
    axes = varying(AXES, rows)
    shares = {column: share_between([word(row, column) for row in rows], errors) for column in varying_categories(rows)}
    category = max(shares, key=lambda column: max(0.0, shares[column]), default="")
    return FamilyResiduals(
        score=score,
        residuals=residuals,
        studies=studies,
        axes=axes,
        dependences=dependences([(axis.name, [axis.value(row) for row in rows]) for axis in axes], errors),
        category=category,
        category_share=shares.get(category, 0.0),
        note=note,
    )


def rows_table(families: Sequence[FamilyResiduals]) -> Table:
    """All rows, one a published row, with what the error may go with; empty where not stated."""
    return Table("Residuals", CSV_COLUMNS, tuple(_cells(one) for family in families for one in family.residuals))


def _cells(one: Residual) -> tuple[object, ...]:
    row, score = one.row, one.score
    counts: list[object] = [replicas(row) if column == "dp" else _number(row.text(column)) for column in _COUNTS]
    return (
        score.id,
        score.family,
        row.text("model"),
        row.text("gpu"),
        *counts,
        *(row.text(column) or None for column in _WORDS),
        score.measured_s,
        score.predicted_s,
        score.error_pct,
        score.executed_flops_per_gpu,
        score.status,
    )


def _number(text: str) -> object:
    return int(text) if text.isdigit() else text or None


def ready_folder(folder: Path) -> None:
    """Makes the folder. Raises UsageError where it cannot be: better before the forecasts than after."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(folder, error) from error


def write_residuals(families: Sequence[FamilyResiduals], folder: Path) -> tuple[Path, ...]:
    """Writes residuals.csv, residuals.md and a picture of every family that has scored rows into `folder`, which
    exists. Raises UsageError where that fails.
    """
    import matplotlib.style

    from traincast.report.residuals_draw import draw_family
    from traincast.report.residuals_page import page
    from traincast.report.sc21_draw import save

    paths = [folder / CSV_NAME, folder / PAGE_NAME]
    try:
        paths[0].write_text(render_csv(rows_table(families)) + "\n", encoding="utf-8")
        paths[1].write_text(page(families), encoding="utf-8")
        for family in families:
            if family.score.scored:
                paths.append(folder / family.picture)
                with matplotlib.style.context("default"):  # whatever the user's own matplotlibrc says
                    save(draw_family(family), paths[-1], dpi=100)
    except OSError as error:
        raise _unwritable(folder, error) from error
    return tuple(paths)


def _unwritable(folder: Path, error: OSError) -> UsageError:
    reason = error.strerror or type(error).__name__
    return UsageError(f"cannot write into {folder}: {reason}", where="-o", fix="name a folder that is writable")
