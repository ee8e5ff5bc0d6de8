"""The residual study as a page: scores of all families, then each with its figure, what its error goes with, a note."""

from collections.abc import Sequence

import numpy as np

from traincast.report.residuals import CSV_NAME, OUTLIER_PCT, FamilyResiduals, Residual
from traincast.report.residuals_axes import AXES, CATEGORIES, Axis, replicas, stated, word
from traincast.report.residuals_notes import needs_note
from traincast.report.residuals_stats import DRAWS, share_between
from traincast.report.tables import Cell, Table, render_markdown

MOST_OUTLIERS = 8
_MOST_VALUES = 7
_LABELS = {axis.name: axis.label.split(" [")[0] for axis in AXES}
_HEAD = f"""\
# Residuals: where the error stays

Written by `traincast report residuals`. Errors are predicted over measured step time, less one, over rows that no
profile was fitted on; the null forecast runs each row's executed FLOPs at the mean rate of the family's other rows.
All rows in full digits: [{CSV_NAME}]({CSV_NAME}).

- A study is several shapes of one model on the same GPUs with the same batch. Its regret is how much longer the
  predicted best was measured to take than the measured best; its rank correlation is that of the shapes' times.
- An axis is a number in which the rows differ: parallel sizes, microbatch, hidden size, sequence. Where its rank
  correlation with the error is positive, the forecast grows with it more than what was measured. p is the chance that
  a shuffled error correlates as much ({DRAWS:,} shuffles), times the number of axes of the family. Axes of one family
  often grow together; the one that is named need not be the cause.
- In the figures a point is a row, coloured by the words (precision, kind of CP, table, …) whose groups differ most in
  their error; hollow points are rows that a profile was fitted on; the band is ±{OUTLIER_PCT:g} %, and the worst rows
  beyond it have their ids in one panel. Rows that do not state a value are not in that panel. A rank correlation in
  bold is beyond chance (p at most 0.05)."""


def page(families: Sequence[FamilyResiduals]) -> str:
    """The page as Markdown."""
    plain = summary_table(families)
    names = {one.name: f"[{one.name}](#{one.name})" for one in families if one.score.scored}
    linked = tuple((names.get(str(row[0]), row[0]), *row[1:]) for row in plain.rows)
    parts = [_HEAD, render_markdown(Table(plain.title, plain.columns, linked))]
    parts += [section(one) for one in families if one.score.scored]
    without = [one for one in families if not one.score.scored]
    if without:
        parts.append("## Families without a scored row")
        parts.append("\n".join(f"- {one.name}: {_why_not(one)}" for one in without))
    return "\n\n".join(parts) + "\n"


def summary_table(families: Sequence[FamilyResiduals]) -> Table:
    """A row a family: its scores, and the axis that its error goes with most."""
    columns = (
        "family", "rows", "scored", "fitted", "mean |error| %", "null forecast %", "worst %", "bias %",
        "rank corr. of times", "of rates", "studies", "rank corr. in studies", "regret %", "worst regret %",
        "strongest dependence",
    )  # fmt: skip
    return Table("Residuals by family", columns, tuple(_summary(one) for one in families))


def _summary(family: FamilyResiduals) -> tuple[object, ...]:
    score = family.score
    percents = (score.mape_pct, score.null_mape_pct, score.max_abs_pct, score.bias_pct)
    ranks = (score.spearman, score.spearman_rate)
    return (
        family.name,
        score.n,
        score.scored,
        score.fitted,
        *(_rounded(value, 1) for value in percents),
        *(_rounded(value, 2) for value in ranks),
        score.studies,
        _rounded(score.spearman_in_studies, 2),
        _rounded(score.regret_pct, 1),
        _rounded(score.worst_regret_pct, 1),
        _strongest(family),
    )


def _rounded(value: float | None, decimals: int) -> object:
    return None if value is None else Cell(value, f"{value:.{decimals}f}")


def _strongest(family: FamilyResiduals) -> str | None:
    found = next((one for one in family.dependences if one.beyond_chance), None)
    return None if found is None else f"{_LABELS[found.axis]} {found.rho:+.2f}"


def section(family: FamilyResiduals) -> str:
    """A family's part of the page."""
    parts = [f"## {family.name}", f"![Error of step time by axis: {family.name}]({family.picture})", score_line(family)]
    lines = (dependence_line(family), category_line(family), products_line(family))
    parts.append(" ".join(text for text in lines if text))
    parts.append(_axes_line(family))
    parts.append(studies_line(family))
    parts.append(outliers_line(family))
    if family.note:
        parts.append(f"**What is missing.** {family.note}")
    elif needs_note(family.score):
        parts.append("**What is missing** is not known.")
    return "\n\n".join(part for part in parts if part)


def score_line(family: FamilyResiduals) -> str:
    """The scores in words."""
    score = family.score
    null = "" if score.null_mape_pct is None else f" (null forecast {score.null_mape_pct:.1f} %)"
    others = [
        f"{len(found)} {words}"
        for found, words in (
            (family.standing("fitted"), "fitted"),
            (family.standing("shown"), "shown but not scored"),
            (family.standing("no forecast"), "without a forecast"),
        )
        if found
    ]
    rest = f" Of its other rows {', '.join(others)}." if others else ""
    rows = "One row" if score.scored == 1 else f"{score.scored} rows"
    return (
        f"{rows} scored: mean |error| {score.mape_pct:.1f} %{null}, worst {score.max_abs_pct:.1f} %, "
        f"bias {score.bias_pct:+.1f} %.{rest}"
    )


def dependence_line(family: FamilyResiduals) -> str:
    """The strongest dependence in words, with the mean error at each value."""
    if not family.dependences:
        return "Too few rows, or rows too alike, for a dependence."
    first = family.dependences[0]
    axis = next(axis for axis in AXES if axis.name == first.axis)
    looked = len(family.dependences)
    chance = f"p {_p(first.p_corrected)} for {looked} ax{'i' if looked == 1 else 'e'}s"
    found = f"rank correlation {first.rho:+.2f} over {first.rows} rows, {chance}"
    if not first.beyond_chance:
        return f"No axis goes with the error beyond chance; the nearest is {_LABELS[first.axis]} ({found})."
    sense = "rises" if first.rho > 0 else "falls"
    return f"Strongest dependence: the error {sense} with {_LABELS[first.axis]} ({found}): {means(family, axis)}."


def means(family: FamilyResiduals, axis: Axis) -> str:
    """Mean error at each value of an axis; of the lowest and the highest third of the rows where values are many."""
    known = [(value, one.error_pct) for one in family.standing("scored") if (value := axis.value(one.row)) is not None]
    by_value: dict[int, list[float]] = {}
    for value, error in sorted(known):
        by_value.setdefault(value, []).append(error)
    if len(by_value) <= _MOST_VALUES:
        return ", ".join(f"{np.mean(e):+.1f} % at {v:,} ({_rows(len(e))})" for v, e in by_value.items())
    values = sorted(value for value, _ in known)
    low, high = values[len(values) // 3], values[2 * len(values) // 3]
    if low == high:  # one value that more than a third of the rows share: above it, or below
        high = min((value for value in by_value if value > low), default=high)
        low = max(value for value in by_value if value < high)
    below, above = [e for v, e in known if v <= low], [e for v, e in known if v >= high]
    return (
        f"{np.mean(below):+.1f} % up to {low:,} ({_rows(len(below))}), "
        f"{np.mean(above):+.1f} % from {high:,} on ({_rows(len(above))})"
    )


def category_line(family: FamilyResiduals) -> str:
    """What tells the errors apart in words; nothing where no group does."""
    if not family.category or family.category_share <= 0.05:
        return ""
    groups: dict[str, list[float]] = {}
    for one in family.standing("scored"):
        groups.setdefault(word(one.row, family.category), []).append(one.error_pct)
    ordered = sorted(groups.items(), key=lambda pair: (-len(pair[1]), pair[0]))[:_MOST_VALUES]
    rest = len(groups) - len(ordered)
    listed = ", ".join(f"{name} {np.mean(errors):+.1f} % ({_rows(len(errors))})" for name, errors in ordered)
    more = f", and {rest} more" if rest else ""
    name = CATEGORIES[family.category]
    return f"By {name}, which accounts for {100 * family.category_share:.0f} % of the error's variance: {listed}{more}."


def products_line(family: FamilyResiduals) -> str:
    """How much of the error goes with the shapes of a layer's products; nothing where most rows have their own."""
    columns = ("hidden", "seq", "microbatch", "tp")
    shapes = [tuple(stated(column)(one.row) for column in columns) for one in family.standing("scored")]
    known = [(shape, one.error_pct) for shape, one in zip(shapes, family.standing("scored"), strict=True) if all(shape)]
    kinds = {shape for shape, _ in known}
    if len(kinds) < 2 or len(known) < 2 * len(kinds):
        return ""
    share = share_between([str(shape) for shape, _ in known], [error for _, error in known])
    if share <= 0.05:
        return "The shape of a layer's products (hidden size, sequence, microbatch, TP) accounts for none of it."
    return (
        f"The shape of a layer's products (hidden size, sequence, microbatch, TP: {len(kinds)} of them) accounts for "
        f"{100 * share:.0f} %."
    )


def _axes_line(family: FamilyResiduals) -> str:
    """All axes that were looked at, but the one that was told."""
    others = [f"{_LABELS[one.axis]} {one.rho:+.2f} (p {_p(one.p_corrected)})" for one in family.dependences[1:]]
    return f"Other axes: {', '.join(others)}." if others else ""


def studies_line(family: FamilyResiduals) -> str:
    """Regret and order of the shapes in words; the worst study by name."""
    score, studies = family.score, family.studies
    if not studies or score.regret_pct is None:
        return ""
    worst = max(studies, key=lambda study: study.regret_pct)
    right = sum(study.regret_pct == 0.0 for study in studies)
    count = "One study" if len(studies) == 1 else f"{len(studies)} studies"
    ranks = "" if score.spearman_in_studies is None else f"; rank correlation of shapes {score.spearman_in_studies:.2f}"
    if score.spearman_in_studies is not None and len(studies) > 1:
        ranks += f" in the mean, {score.worst_spearman_in_studies:.2f} at worst"
    found = f"{count} of shapes: the predicted best is the measured best in {right}, regret {score.regret_pct:.1f} %"
    if worst.regret_pct == 0.0 or len(studies) == 1:
        return f"{found}{ranks}."
    where = f"{worst.model} on {worst.gpus:,} GPUs, batch {worst.batch:,}"
    named = f"{worst.predicted_best.ids[0]} in place of {worst.measured_best.ids[0]}"
    return f"{found} in the mean, {worst.regret_pct:.1f} % at worst ({where}: {named}){ranks}."


def outliers_line(family: FamilyResiduals) -> str:
    """The rows beyond 15 %, the worst first."""
    found = family.outliers
    if not found:
        return f"No scored row is beyond {OUTLIER_PCT:g} %."
    listed = ", ".join(f"{one.score.id} {one.error_pct:+.1f} % ({shape(one)})" for one in found[:MOST_OUTLIERS])
    rest = len(found) - MOST_OUTLIERS
    more = f", and {rest} more" if rest > 0 else ""
    return f"Beyond {OUTLIER_PCT:g} %: {_rows(len(found))}. {listed}{more}."


def shape(one: Residual) -> str:
    """GPUs and parallel sizes above 1 of a row."""
    sizes = [("TP", stated("tp")), ("PP", stated("pp")), ("CP", stated("cp")), ("DP", replicas)]
    axes = [f"{name}{size}" for name, value in sizes if (size := value(one.row)) is not None and size > 1]
    microbatch = stated("microbatch")(one.row)
    return " ".join([*(axes or ["one GPU"]), *([f"microbatch {microbatch}"] if microbatch else [])])


def _why_not(family: FamilyResiduals) -> str:
    reasons: dict[str, int] = {}
    for one in family.residuals:
        reason = one.score.reason.split(";")[0]
        reasons[reason] = reasons.get(reason, 0) + 1
    return ", ".join(f"{reason} ({_rows(count)})" for reason, count in reasons.items())


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count:,} rows"


def _p(value: float) -> str:
    return "< 0.01" if value < 0.01 else f"{value:.2f}"
