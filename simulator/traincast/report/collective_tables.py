"""Measured collectives against forecasts, as tables: by point, by curve, by hardware."""

from collections import Counter
from typing import TYPE_CHECKING

from traincast.report.tables import Table

if TYPE_CHECKING:
    from traincast.validate.collectives import CollectiveReport

POINT_COLUMNS = (
    *("curve_id", "size_bytes", "in_place", "measured_us", "predicted_us", "error_pct", "status", "reason"),
    *("how", "low_us", "high_us"),
)


def collective_tables(report: "CollectiveReport", fmt: str) -> tuple[Table, ...]:
    """CSV holds every point. On screen: all in one line, hardware, curves, why some points do not count."""
    if fmt == "csv":
        return (points_table(report),)
    return (overall_table(report), hardware_table(report), curves_table(report), skipped_table(report))


def points_table(report: "CollectiveReport") -> Table:
    """One row a measured point."""
    rows = tuple(tuple(row.as_dict()[column] for column in POINT_COLUMNS) for row in report.rows)
    return Table("Points", POINT_COLUMNS, rows)


def overall_table(report: "CollectiveReport") -> Table:
    """The figures over all curves of nccl-tests with at least 8 sizes."""
    found = report.overall()
    names = {
        "curves": "nccl-tests curves of 8 sizes and more",
        "median_pct": "median of their mean |errors| %",
        "scored_curves": "of these, no profile was fitted on",
        "scored_median_pct": "median of their mean |errors| %",
        "covered_pct": "scored points inside the 80 % interval of all other sources, %",
        "covered_sources_pct": "the same, each source counted once, %",
        "inside_sources_pct": "  of these, inside a node, %",
        "across_sources_pct": "  of these, across nodes, %",
        "points": "points used",
        "skipped_points": "points skipped",
    }
    return Table("All curves", ("figure", "value"), tuple((text, found[name]) for name, text in names.items()))


def hardware_table(report: "CollectiveReport") -> Table:
    """One row a profile; a curve that any profile was fitted on counts as fitted."""
    columns = (
        *("profile", "GPUs", "curves", "scored", "points", "median of mean |error| %", "mean of them %"),
        *("fitted", "median of mean |error| %", "in interval %", "worst scored curve"),
    )
    rows = tuple(
        (
            one.profile,
            one.gpus,
            one.curves,
            one.scored_curves,
            one.scored_points,
            one.scored_median_pct,
            one.scored_mean_pct,
            one.fitted_curves,
            one.fitted_median_pct,
            one.covered_pct,
            one.worst_curve,
        )
        for one in report.hardware
    )
    return Table("Hardware", columns, rows)


def curves_table(report: "CollectiveReport") -> Table:
    """One row a curve, spikes left out."""
    columns = (
        *("curve", "profile", "op", "ranks", "nodes", "sizes", "points", "status", "mean |error| %"),
        *("from 64 MiB %", "worst %", "bias %", "in interval %"),
    )
    rows = tuple(
        (
            one.curve_id,
            one.profile or None,
            one.op,
            one.ranks,
            one.nodes,
            one.sizes,
            one.n,
            one.status,
            one.mean_abs_pct,
            one.large_mean_abs_pct,
            one.worst_pct,
            one.bias_pct,
            one.covered_pct,
        )
        for one in report.curves
    )
    return Table("Curves", columns, rows)


def skipped_table(report: "CollectiveReport") -> Table:
    """Reasons for which points do not count, with the number of points of each."""
    counts = Counter(row.reason.split(";")[0] for row in report.rows if row.status == "skipped")
    return Table("Points that do not count, by first reason", ("reason", "points"), tuple(counts.most_common()))
