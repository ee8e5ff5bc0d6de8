"""A validation as tables."""

from collections import Counter
from typing import TYPE_CHECKING

from traincast.report.tables import Table

if TYPE_CHECKING:
    from traincast.validate import ValidationReport

ROW_COLUMNS = ("id", "family", "measured_s", "predicted_s", "error_pct", "status", "reason")
_MANY_ROWS = 200


def validation_tables(report: "ValidationReport", fmt: str) -> tuple[Table, ...]:
    """CSV holds every row. On screen: the rows (where they are few), why some do not count, the families."""
    if fmt == "csv":
        return (rows_table(report),)
    reasons, families = skipped_table(report), families_table(report)
    if len(report.rows) > _MANY_ROWS:
        return (reasons, families)
    return (rows_table(report), reasons, families)


def rows_table(report: "ValidationReport") -> Table:
    """One row a published row."""
    rows = tuple(
        (row.id, row.family, row.measured_s, row.predicted_s, row.error_pct, row.status, row.reason)
        for row in report.rows
    )
    return Table("Rows", ROW_COLUMNS, rows)


def skipped_table(report: "ValidationReport") -> Table:
    """Reasons for which rows do not count, with the number of rows of each."""
    counts = Counter(row.reason.split(";")[0] for row in report.rows if row.status == "skipped")
    return Table("Rows that do not count, by first reason", ("reason", "rows"), tuple(counts.most_common()))


def families_table(report: "ValidationReport") -> Table:
    """Scores of families; the null forecast is executed FLOPs at the mean rate of the family's other rows.

    A study is several shapes of one model on the same GPUs; its regret is what the predicted best shape took longer
    than the measured best.
    """
    rows = tuple(
        (
            one.family,
            one.n,
            one.scored,
            one.fitted,
            one.mape_pct,
            one.null_mape_pct,
            one.max_abs_pct,
            one.bias_pct,
            one.spearman,
            one.spearman_rate,
            one.pearson_rate,
            one.studies,
            one.regret_pct,
            one.worst_regret_pct,
            one.spearman_in_studies,
            one.worst_spearman_in_studies,
        )
        for one in report.families
    )
    columns = (
        "family",
        "rows",
        "scored",
        "fitted",
        "mean |error| %",
        "null forecast %",
        "worst %",
        "bias %",
        "rank corr. of times",
        "rank corr. of rates",
        "corr. of rates",
        "studies",
        "regret %",
        "worst regret %",
        "rank corr. in studies",
        "worst rank corr.",
    )
    return Table("Families: step time, fitted rows left out", columns, rows)
