"""Table 1 of SC21 (Narayanan et al. 2021), regenerated beside its published numbers."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from traincast.errors import DataError, UsageError
from traincast.report.tables import Table, render_csv, render_markdown

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.patches import Patch

    from traincast.forecast import Forecast
    from traincast.scenario import Scenario
    from traincast.validate import FamilyScore

Row = dict[str, Any]
_FOLDER = "sc21"
_PETA_PER_TERA = 1e-3
_PUBLISHED, _PREDICTED, _FITTED, _INK = "#263238", "#2f6fb3", "#f0ad4e", "#263238"

COLUMNS = (
    "model",
    "parameters_1e9",
    "gpus",
    "tp",
    "pp",
    "dp",
    "vpp",
    "microbatch",
    "global_batch",
    "published_step_s",
    "forecast_step_s",
    "error_pct",
    "published_tflops",
    "forecast_tflops",
    "published_pct_of_peak",
    "forecast_pct_of_peak",
    "published_pflops",
    "forecast_pflops",
    "status",
)


def sc21_scenarios() -> tuple["Scenario", ...]:
    """The ten scenarios of Table 1, the smallest model first. Raises DataError where they are not there."""
    from traincast.catalog import data_dir
    from traincast.scenario import load_scenario

    folder = data_dir() / "scenarios" / _FOLDER
    found = sorted(folder.glob("t1_*.yaml"), key=lambda path: _billions(path.stem))
    if not found:
        raise DataError("no scenario t1_*.yaml", where=str(folder), fix="reinstall traincast with its data")
    return tuple(load_scenario(str(path)) for path in found)


def forecast_table1(scenarios: Sequence["Scenario"], advance: Callable[[int], object] = lambda done: None) -> list[Row]:
    """One row a scenario: shape, published figures, forecast, error."""
    from traincast.forecast import forecast

    rows = []
    for scenario in scenarios:
        rows.append(table1_row(scenario, forecast(scenario)))
        advance(1)
    return rows


def table1_row(scenario: "Scenario", outcome: "Forecast") -> Row:
    """The row of one scenario. Figures that the scenario does not state are None."""
    from traincast.model.parameters import total_parameters

    mesh, recipe, published = scenario.mesh, scenario.recipe, scenario.published or {}
    measured = published.get("step_time_s")
    rate = published.get("tflops_per_gpu")
    hfu = outcome.rates.hfu
    assert hfu is not None
    peak_tflops = outcome.rates.tflops_per_gpu["hardware"] / hfu
    return {
        "model": scenario.model.name,
        "parameters_1e9": total_parameters(scenario.model) / 1e9,
        "gpus": mesh.world,
        "tp": mesh.tp,
        "pp": mesh.pp,
        "dp": mesh.dp,
        "vpp": recipe.vpp,
        "microbatch": recipe.microbatch,
        "global_batch": recipe.global_batch,
        "published_step_s": measured,
        "forecast_step_s": outcome.step_time_s,
        "error_pct": None if measured is None else 100 * (outcome.step_time_s / measured - 1),
        "published_tflops": rate,
        "forecast_tflops": outcome.rates.tflops_per_gpu["hardware"],
        "published_pct_of_peak": None if rate is None else 100 * rate / peak_tflops,
        "forecast_pct_of_peak": 100 * hfu,
        "published_pflops": None if rate is None else rate * mesh.world * _PETA_PER_TERA,
        "forecast_pflops": outcome.rates.aggregate_pflops,
        "status": "fitted" if published.get("row") in _fitted_rows(outcome.profile) else "scored",
    }


def table1(rows: Sequence[Row]) -> Table:
    """Table 1; TFLOP/s count `hardware` FLOPs per GPU, as the paper does."""
    cells = tuple(tuple(row[column] for column in COLUMNS) for row in rows)
    return Table("SC21 Table 1: published and forecast (TFLOP/s of hardware FLOPs per GPU)", COLUMNS, cells)


def table1_score(rows: Sequence[Row]) -> "FamilyScore":
    """Scores of the rows that no profile was fitted on, beside the null forecast."""
    from traincast.validate import RowScore, family_scores

    scores = [
        RowScore(
            id=row["model"],
            family="SC21 Table 1",
            measured_s=row["published_step_s"],
            predicted_s=row["forecast_step_s"],
            status=row["status"] if row["published_step_s"] else "skipped",
            reason="",
            executed_flops_per_gpu=row["forecast_tflops"] * row["forecast_step_s"] * 1e12,
        )
        for row in rows
    ]
    return family_scores(scores)[0]


def write_sc21(rows: Sequence[Row], folder: Path) -> tuple[Path, ...]:
    """Writes table1.csv, table1.md and table1.png into `folder`. Raises UsageError where that fails."""
    paths = tuple(folder / f"table1.{suffix}" for suffix in ("csv", "md", "png"))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        paths[0].write_text(render_csv(table1(rows)) + "\n", encoding="utf-8")
        paths[1].write_text(_markdown(rows), encoding="utf-8")
        draw_table1(rows, paths[2])
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise UsageError(f"cannot write into {folder}: {reason}", fix="name a folder that is writable") from error
    return paths


def _markdown(rows: Sequence[Row]) -> str:
    return "\n".join(
        (
            "# SC21 Table 1, regenerated",
            "",
            "Narayanan et al. 2021, Table 1, beside forecasts of `scenarios/sc21/`. TFLOP/s are per GPU and",
            "count `hardware` FLOPs (with recomputation) as there. Written by `traincast report sc21`.",
            "",
            render_markdown(table1(rows)),
            "",
            score_sentence(table1_score(rows)),
            "",
            "![Forecast and published TFLOP/s](table1.png)",
            "",
        )
    )


def score_sentence(score: "FamilyScore") -> str:
    """The scores in words."""
    if score.mape_pct is None:
        return "No row could be scored."
    null = "" if score.null_mape_pct is None else f" (null forecast {score.null_mape_pct:.1f} %)"
    correlation = "" if score.pearson_rate is None else f"; correlation of TFLOP/s {score.pearson_rate:.2f}"
    return (
        f"Step time over the {score.scored} rows that the profile was not fitted on: mean error "
        f"{score.mape_pct:.1f} %{null}, worst {score.max_abs_pct:.1f} %, "
        f"bias {score.bias_pct:+.1f} %{correlation}."
    )


def draw_table1(rows: Sequence[Row], path: Path, *, dpi: int = 160) -> None:
    """Published and forecast TFLOP/s of every row, and their errors below."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    shown = [row for row in rows if row["published_tflops"] is not None]
    figure, (upper, lower) = plt.subplots(
        2, 1, sharex=True, figsize=(9.0, 5.4), height_ratios=(2.4, 1.0), layout="constrained"
    )
    places = range(len(shown))
    upper.plot(places, [row["published_tflops"] for row in shown], "o-", color=_PUBLISHED, label="published")
    upper.plot(places, [row["forecast_tflops"] for row in shown], "s--", color=_PREDICTED, label="forecast")
    upper.set_ylabel("TFLOP/s per GPU\n(hardware FLOPs)", color=_INK)
    highest = max(max(row["published_tflops"], row["forecast_tflops"]) for row in shown)
    upper.set_ylim(0.0, 1.15 * highest)
    upper.legend(frameon=False, loc="lower right", ncols=2)
    upper.set_title("SC21 Table 1: forecast beside published", loc="left", color=_INK)
    hues = [_FITTED if row["status"] == "fitted" else _PREDICTED for row in shown]
    lower.bar(places, [row["error_pct"] for row in shown], color=hues, width=0.6)
    if _FITTED in hues:
        lower.legend(handles=[_patch(_FITTED, "fitted on"), _patch(_PREDICTED, "scored")], frameon=False, ncols=2)
    lower.axhline(0.0, color=_INK, linewidth=0.8)
    lower.set_ylabel("error of\nstep time [%]", color=_INK)
    lower.set_xticks(places, [f"{row['model']}\n{row['gpus']} GPUs" for row in shown], fontsize=8)
    for axes in (upper, lower):
        _plain_frame(axes)
    figure.savefig(path, dpi=dpi, facecolor="white")
    plt.close(figure)


def _patch(hue: str, name: str) -> "Patch":
    from matplotlib.patches import Patch

    return Patch(facecolor=hue, label=name)


def _plain_frame(axes: "Axes") -> None:
    axes.grid(axis="y", color="#e0e0e0", linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _fitted_rows(profile: str) -> frozenset[str]:
    from traincast.profile import load_profile

    return load_profile(profile).fitted_rows


def _billions(stem: str) -> float:
    """Model size in a file name such as t1_1p7b; 0 where there is none."""
    found = re.search(r"_(\d+(?:p\d+)?)b$", stem)
    return float(found.group(1).replace("p", ".")) if found else 0.0
