"""Does the choice of calibration rows matter? All 120 choices of three rows of SC21 Table 1.

For each choice two constants (`gemm.forward` with the dgrad and wgrad rates tied to it, and `memory.efficiency`) are
fitted on the three rows and the other seven are forecast. The prior is weak (10 % and 30 %): the layer times
of the 2022 stack, the same silicon. Run `python reports/validation/table1_choices.py`; it writes table1_choices.csv
and table1_choices.md beside itself.

Step times are tabulated once on a grid of the two constants (every grid point is a full forecast by the recurrence) and
interpolated by splines in between, so that 120 fits cost one table. The interpolation error is printed.
"""

import csv
import itertools
from pathlib import Path

import numpy as np
from scipy.interpolate import RectBivariateSpline
from scipy.optimize import least_squares

from traincast.analytic import evaluate
from traincast.forecast import prepare
from traincast.lower import Job, lower
from traincast.profile import Profile, load_profile
from traincast.scenario import load_scenario

HERE = Path(__file__).resolve().parent
SCENARIOS = tuple(
    f"sc21/t1_{size}"
    for size in ("1p7b", "3p6b", "7p5b", "18p4b", "39p1b", "76p1b", "145p6b", "310p1b", "529p6b", "1008b")
)
GEMM = np.linspace(0.72, 0.95, 6)
MEMORY = np.linspace(0.45, 0.95, 6)
WGRAD_RATIO = 0.95
PRIOR_SPREAD = (0.10, 0.30)
ROW_SPREAD = 0.02


def with_rates(profile: Profile, gemm: float, memory: float) -> Profile:
    """The profile at other rates."""
    return profile.replaced(
        gemm__forward=gemm, gemm__dgrad=gemm, gemm__wgrad=WGRAD_RATIO * gemm, memory__efficiency=memory
    )


def step_times(jobs: list[Job], gemm: float, memory: float) -> np.ndarray:
    """Step time of every row at two rates [s]."""
    found = []
    for job in jobs:
        profile = with_rates(job.profile, gemm, memory)
        found.append(
            evaluate(lower(Job(job.model, job.mesh, job.recipe, profile, job.cluster, job.gpu)).program).step_time_s
        )
    return np.array(found)


def main() -> None:
    """Tabulate, fit all choices, write the table."""
    prepared = [prepare(load_scenario(name)) for name in SCENARIOS]
    jobs = [p.job for p in prepared]
    published = [p.scenario.published for p in prepared]
    measured = np.array([float(p["step_time_s"]) for p in published])
    rate = np.array([float(p["tflops_per_gpu"]) for p in published])
    table = np.array([[np.log(step_times(jobs, g, m)) for m in MEMORY] for g in GEMM])
    splines = [RectBivariateSpline(GEMM, MEMORY, table[:, :, i]) for i in range(len(jobs))]

    def forecast(q: np.ndarray) -> np.ndarray:
        return np.array([s(q[0], q[1])[0, 0] for s in splines])

    check = np.array([0.83, 0.62])
    gap = np.abs(np.exp(forecast(check) - np.log(step_times(jobs, *check))) - 1).max()
    base = load_profile("a100-80gb-sxm")
    prior = np.array([base["gemm.forward"], base["memory.efficiency"]])
    rows = [fit_choice(choice, forecast, measured, rate, prior) for choice in itertools.combinations(range(10), 3)]
    write(rows, gap)


def fit_choice(choice, forecast, measured, rate, prior) -> dict[str, object]:  # type: ignore[no-untyped-def]
    """Fit on three rows, score the other seven (errors in %) and the correlation over all ten."""
    fitted = list(choice)

    def residual(q: np.ndarray) -> np.ndarray:
        rows = (forecast(q) - np.log(measured))[fitted] / ROW_SPREAD
        return np.concatenate([rows, (q / prior - 1) / np.array(PRIOR_SPREAD)])

    q = least_squares(residual, prior, bounds=([GEMM[0], MEMORY[0]], [GEMM[-1], MEMORY[-1]])).x
    error = np.exp(forecast(q)) / measured - 1
    rest = np.delete(error, fitted)
    return {
        "fitted": " ".join(SCENARIOS[i].removeprefix("sc21/t1_") for i in fitted),
        "gemm_forward": round(q[0], 4),
        "memory_efficiency": round(q[1], 4),
        "rest_mean_error_pct": round(100 * float(np.abs(rest).mean()), 2),
        "rest_worst_error_pct": round(100 * float(np.abs(rest).max()), 2),
        "correlation_tflops": round(float(np.corrcoef(rate, rate / (1 + error))[0, 1]), 3),
    }


def write(rows: list[dict[str, object]], gap: float) -> None:
    """Write the CSV and a summary."""
    with (HERE / "table1_choices.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    mean, worst, correlation = (
        np.array([float(str(r[name])) for r in rows])
        for name in ("rest_mean_error_pct", "rest_worst_error_pct", "correlation_tflops")
    )
    lines = [
        "# SC21 Table 1: all choices of three calibration rows",
        "",
        "Made by `python reports/validation/table1_choices.py`. Two constants are fitted on three rows; errors are of",
        "the step time of the other seven, the correlation is of TFLOP/s per GPU over all ten (measured 135 to 163).",
        "",
        "| over 120 choices | median | 90 % | worst |",
        "|---|---|---|---|",
        f"| mean error of the rest [%] | {np.median(mean):.2f} | {np.quantile(mean, 0.9):.2f} | {mean.max():.2f} |",
        f"| worst error of the rest [%] | {np.median(worst):.2f} | {np.quantile(worst, 0.9):.2f} | {worst.max():.2f} |",
        f"| correlation (low end) | {np.median(correlation):.3f} | {np.quantile(correlation, 0.1):.3f} | "
        f"{correlation.min():.3f} |",
        "",
        f"The spline between full forecasts errs by at most {100 * gap:.3f} %.",
        "The null forecast (executed FLOPs at the mean rate of the other rows) has a mean error of 6.9 %.",
        "",
    ]
    (HERE / "table1_choices.md").write_text("\n".join(lines), encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
