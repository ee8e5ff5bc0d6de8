"""Tables 1 and 2 and Figures 11 to 18 of SC21 (Narayanan et al. 2021), regenerated beside the published points.

The rows are those of `scenarios/published/`, the forecasts those of `traincast validate`.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from traincast.errors import DataError, UsageError
from traincast.report.sc21_points import Cells, Point, mean_error_pct, study_score
from traincast.report.sc21_studies import STUDIES, Study, points_of
from traincast.report.tables import Table, render_csv, render_markdown

if TYPE_CHECKING:
    from traincast.validate import FamilyScore, PublishedRow
    from traincast.validate.score import RowScore

FAMILY = "sc21"
INDEX = "README.md"


@dataclass(frozen=True)
class StudyResult:
    """A table or figure with its points, measured and forecast."""

    study: Study
    points: tuple[Point, ...]

    @property
    def score(self) -> "FamilyScore":
        """Scores of its rows by themselves."""
        return study_score(self.points)

    @property
    def finding(self) -> str:
        """What it shows, in one sentence."""
        return self.study.finding(self.points)

    def rows(self) -> list[Cells]:
        """Its rows by column; all have the same columns."""
        return [self.study.cells(point) for point in self.points]

    def as_dict(self) -> dict[str, Any]:
        """The study as JSON shows it."""
        score = asdict(self.score)
        del score["family"]
        names = {"name": self.study.name, "label": self.study.label, "title": self.study.title}
        return {**names, "finding": self.finding, "score": score, "rows": self.rows()}


def chosen_studies(names: Sequence[str]) -> tuple[Study, ...]:
    """The studies of these names in the paper's order, all of them for no name. Raises UsageError for others."""
    known = {study.name: study for study in STUDIES}
    for name in names:
        if name not in known:
            raise UsageError(f"no table or figure {name!r}", where="--only", fix=f"use some of {','.join(known)}")
    return tuple(study for study in STUDIES if not names or study.name in names)


def study_rows(studies: Sequence[Study]) -> tuple["PublishedRow", ...]:
    """The published rows that these studies draw, each once. Raises DataError where one has none."""
    from traincast.validate import published_files, read_published

    rows = read_published(published_files(), families=(FAMILY,))
    for study in studies:
        if not any(study.owns(row) for row in rows):
            raise DataError(
                f"no row of {study.label}",
                where=str(published_files()[0] / f"{FAMILY}.csv"),
                fix="reinstall traincast with its data",
            )
    return tuple(row for row in rows if any(study.owns(row) for study in studies))


def forecast_studies(
    studies: Sequence[Study], rows: Sequence["PublishedRow"], advance: Callable[[int], object] = lambda done: None
) -> tuple[StudyResult, ...]:
    """Forecasts all rows in one batch, as `traincast validate` does, and hands each study its own."""
    from traincast.validate import validate_rows

    return with_scores(studies, rows, validate_rows(rows, advance).rows)


def with_scores(
    studies: Sequence[Study], rows: Sequence["PublishedRow"], scores: Sequence["RowScore"]
) -> tuple[StudyResult, ...]:
    """The studies' points from rows and their scores, one score a row."""
    by_id = {score.id: score for score in scores}
    return tuple(StudyResult(study, points_of(study, rows, by_id)) for study in studies)


def study_table(result: StudyResult) -> Table:
    """The table of a study: a row a point, published beside forecast."""
    rows = result.rows()
    columns = tuple(rows[0])
    title = f"SC21 {result.study.label}: {result.study.title}"
    return Table(title, columns, tuple(tuple(row[column] for column in columns) for row in rows))


def index_table(results: Sequence[StudyResult]) -> Table:
    """A row a study: how many points count, and the errors of step time."""
    return Table("SC21, regenerated: errors of step time", _INDEX_COLUMNS, tuple(_index_row(one) for one in results))


_INDEX_COLUMNS = (
    "table or figure",
    "what",
    "rows",
    "scored",
    "fitted",
    "mean |error| %",
    "null forecast %",
    "worst %",
    "bias %",
    "shown, not scored: mean |error| %",
    "without forecast",
)


def _index_row(result: StudyResult) -> tuple[object, ...]:
    score, points = result.score, result.points
    return (
        result.study.label,
        result.study.title,
        score.n,
        score.scored,
        score.fitted,
        score.mape_pct,
        score.null_mape_pct,
        score.max_abs_pct,
        score.bias_pct,
        mean_error_pct(points, "shown"),
        sum(point.standing == "no forecast" for point in points),
    )


def score_sentence(score: "FamilyScore") -> str:
    """The scores in words."""
    if score.mape_pct is None:
        return "No row could be scored."
    null = "" if score.null_mape_pct is None else f" (null forecast {score.null_mape_pct:.1f} %)"
    correlation = "" if score.pearson_rate is None else f"; correlation of TFLOP/s {score.pearson_rate:.2f}"
    number = "the row" if score.scored == 1 else f"the {score.scored} rows"
    return (
        f"Step time over {number} scored: mean error {score.mape_pct:.1f} %{null}, worst {score.max_abs_pct:.1f} %, "
        f"bias {score.bias_pct:+.1f} %{correlation}."
    )


def ready_folder(folder: Path) -> None:
    """Makes the folder. Raises UsageError where it cannot be: better before the forecasts than after."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(folder, error) from error


def write_studies(results: Sequence[StudyResult], folder: Path) -> tuple[Path, ...]:
    """Writes NAME.csv, NAME.md and NAME.png of every study into `folder`, which exists; an index too where these
    are all studies. Raises UsageError where that fails.
    """
    import matplotlib.style

    from traincast.report.sc21_draw import draw_study, save

    paths: list[Path] = []
    try:
        for one in results:
            csv, markdown, png = (folder / f"{one.study.name}.{suffix}" for suffix in ("csv", "md", "png"))
            csv.write_text(render_csv(study_table(one)) + "\n", encoding="utf-8")
            markdown.write_text(study_markdown(one), encoding="utf-8")
            with matplotlib.style.context("default"):  # whatever the user's own matplotlibrc says
                save(draw_study(one.study, one.points), png)
            paths += [csv, markdown, png]
        if len(results) == len(STUDIES):
            paths.append(folder / INDEX)
            paths[-1].write_text(index_markdown(results), encoding="utf-8")
    except OSError as error:
        raise _unwritable(folder, error) from error
    return tuple(paths)


def _unwritable(folder: Path, error: OSError) -> UsageError:
    reason = error.strerror or type(error).__name__
    return UsageError(f"cannot write into {folder}: {reason}", where="-o", fix="name a folder that is writable")


def study_markdown(result: StudyResult) -> str:
    """The study's page: figure, finding, scores, table."""
    study = result.study
    lines = (
        f"# SC21 {study.label}, regenerated: {study.title}",
        f"![Measured and forecast]({study.name}.png)",
        result.finding,
        score_sentence(result.score),
        study.remark,
        render_markdown(study_table(result)),
        f"The same in full digits: [{study.name}.csv]({study.name}.csv). {_HOW}",
    )
    return "\n\n".join(line for line in lines if line) + "\n"


_HOW = "Written by `traincast report sc21`."
_HEAD = f"""\
# SC21, regenerated

Tables 1 and 2 and Figures 11 to 18 of Narayanan et al., *Efficient Large-Scale Language Model Training on GPU Clusters
Using Megatron-LM* (SC 2021), beside forecasts of the same jobs. {_HOW}

Errors are those of step time, over rows that no profile was fitted on; the null forecast runs a table's executed FLOPs
at the mean rate of its other rows. In the figures measured points are hollow and forecast ones filled; TFLOP/s are per
GPU and count `hardware` FLOPs, as the paper does. A `-` in a table is a forecast that could not be made; its reason
stands in the row. Figure 18 shares rows with Figure 12; the totals count each row once. What a table or figure shows
is computed from the numbers."""


def index_markdown(results: Sequence[StudyResult]) -> str:
    """The index: errors of every table and figure, then each with what it shows and its picture."""
    plain = index_table(results)
    linked = tuple((f"[{row[0]}]({one.study.name}.md)", *row[1:]) for one, row in zip(results, plain.rows, strict=True))
    sections = ["\n\n".join((f"## {one.study.label}: {one.study.title}", *_shown(one))) for one in results]
    parts = (_HEAD, render_markdown(Table(plain.title, plain.columns, linked)), *_overall(results), *sections)
    return "\n\n".join(parts) + "\n"


def _shown(result: StudyResult) -> tuple[str, ...]:
    study = result.study
    words = " ".join(text for text in (result.finding, study.remark) if text)
    return (words, f"[Table]({study.name}.md), [CSV]({study.name}.csv)", f"![{study.label}]({study.name}.png)")


def _overall(results: Sequence[StudyResult]) -> tuple[str, ...]:
    """Scores over all rows, each counted once, ZeRO-3 by itself."""
    points = {point.score.id: point for result in results for point in result.points}
    groups = (
        ("All tables and figures but ZeRO-3", [p for p in points.values() if p.row.text("zero_stage") != "3"]),
        ("ZeRO-3", [p for p in points.values() if p.row.text("zero_stage") == "3"]),
    )
    return tuple(f"{name}. {score_sentence(study_score(group))}" for name, group in groups if group)
