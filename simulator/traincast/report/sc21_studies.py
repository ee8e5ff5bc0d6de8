"""The tables and figures of SC21 that are drawn: which rows, what goes along the axis, what to say of them.

Reference: Narayanan et al. 2021, Tables 1 and 2, Figures 11 to 18. Figure 10 draws Table 2.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal

from traincast.report.sc21_findings import (
    Finding,
    choice,
    comparison,
    recomputation_finding,
    table1_finding,
    table2_finding,
    weak_scaling,
)
from traincast.report.sc21_points import (
    Cells,
    Point,
    RateName,
    figure_cells,
    forecast_rate,
    published_rate,
    table1_cells,
    table2_cells,
)
from traincast.validate.rows import PublishedRow
from traincast.validate.score import RowScore

_Text = Callable[[PublishedRow], str]
_tflops_cells = partial(figure_cells, rate="tflops")


@dataclass(frozen=True)
class Study:
    """One table or figure.

    Its rows are those whose `table` begins with one of `tables`. `axis` names what goes along the axis, `place` says
    where on it a row belongs; places stand in the order of the rows. `series` is what gets a colour of its own.
    """

    name: str
    label: str
    title: str
    tables: tuple[str, ...]
    axis: str
    place: _Text
    series: _Text
    finding: Finding
    cells: Callable[[Point], Cells] = _tflops_cells
    rate: RateName = "tflops"
    kind: Literal["lines", "bars"] = "lines"
    keeps: Callable[[PublishedRow], bool] = lambda row: True
    order: Callable[[PublishedRow], tuple[float, ...]] = lambda row: ()
    remark: str = ""

    def owns(self, row: PublishedRow) -> bool:
        """Whether the row is drawn here."""
        table = f"{row.text('table')} "
        return any(table.startswith(f"{name} ") for name in self.tables) and self.keeps(row)


def points_of(study: Study, rows: Sequence[PublishedRow], scores: Mapping[str, RowScore]) -> tuple[Point, ...]:
    """The study's points in the order of the axis; `scores` has one score a row, by id."""
    own = sorted((row for row in rows if study.owns(row)), key=study.order)
    places = list(dict.fromkeys(study.place(row) for row in own))
    return tuple(
        Point(
            row=row,
            score=scores[row.id],
            series=study.series(row),
            place=study.place(row),
            index=places.index(study.place(row)),
            published=published_rate(row, study.rate),
            forecast=forecast_rate(row, scores[row.id], study.rate),
        )
        for row in own
    )


def _column(name: str) -> _Text:
    return lambda row: row.text(name)


def _split(first: str, second: str) -> _Text:
    return lambda row: f"{first.upper()} {row.text(first)}\n{second.upper()} {row.text(second)}"


def _batch(row: PublishedRow) -> str:
    return f"batch {row.text('global_batch')}"


def _either(column: str, value: str, names: tuple[str, str]) -> _Text:
    """The first name where the column has that value, else the second."""
    return lambda row: names[0] if row.text(column) == value else names[1]


_INTERLEAVED, _PLAIN = "interleaved", "non-interleaved"
_SCATTER, _WHOLE = "scatter/gather", "without scatter/gather"
_WITH, _WITHOUT = "recomputation", "no recomputation"
_GPU: Final = "A100s"

STUDIES: Final[tuple[Study, ...]] = (
    Study(
        name="table1",
        label="Table 1",
        title="weak scaling from 1.7B to 1T parameters",
        tables=("Table 1",),
        axis="model",
        place=lambda row: f"{row.text('model').removeprefix('GPT-')}\n{row.text('gpus')} GPUs",
        series=lambda row: "Table 1",
        finding=table1_finding,
        cells=table1_cells,
    ),
    Study(
        name="table2",
        label="Table 2",
        title="PTD-P and ZeRO-3 (drawn in the paper as Figure 10)",
        tables=("Table 2",),
        axis="model and number of GPUs",
        place=lambda row: f"{row.text('model').removeprefix('GPT-').removeprefix('3 ')}\n{row.text('gpus')} GPUs",
        series=_either("zero_stage", "3", ("ZeRO-3", "PTD-P")),
        finding=table2_finding,
        cells=table2_cells,
        kind="bars",
        order=lambda row: (row.count("hidden") or 0, row.count("gpus") or 0),
        remark="The split of PTD-P into tensor and pipeline parallelism is inferred, its chunks are the best that fit.",
    ),
    Study(
        name="fig11",
        label="Figure 11",
        title=f"weak scaling of pipeline parallelism, 15B to 121B on 8 to 64 {_GPU}",
        tables=("Fig 11",),
        axis="pipeline-parallel size",
        place=lambda row: f"PP {row.text('pp')}",
        series=_batch,
        finding=weak_scaling,
    ),
    Study(
        name="fig12",
        label="Figure 12",
        title=f"interleaved and plain 1F1B, 175B on 96 {_GPU}",
        tables=("Fig 12",),
        axis="batch size",
        place=_column("global_batch"),
        series=_either("schedule", "interleaved", (_INTERLEAVED, _PLAIN)),
        finding=comparison("Rate with interleaving over that without", _INTERLEAVED, _PLAIN),
    ),
    Study(
        name="fig13",
        label="Figure 13",
        title=f"pipeline and tensor parallelism, 162B on 64 {_GPU}",
        tables=("Fig 13",),
        axis="pipeline- and tensor-parallel size",
        place=_split("pp", "tp"),
        series=_batch,
        finding=choice("split"),
        kind="bars",
    ),
    Study(
        name="fig14",
        label="Figure 14",
        title=f"pipeline and data parallelism, 5.9B on 64 {_GPU}, microbatch 1",
        tables=("Fig 14",),
        axis="pipeline- and data-parallel size",
        place=_split("pp", "dp"),
        series=_batch,
        finding=choice("split"),
        kind="bars",
    ),
    Study(
        name="fig15",
        label="Figure 15",
        title=f"tensor and data parallelism, 5.9B on 64 {_GPU}, microbatch 1",
        tables=("Fig 15",),
        axis="tensor- and data-parallel size",
        place=_split("tp", "dp"),
        series=_batch,
        finding=choice("split"),
        kind="bars",
    ),
    Study(
        name="fig16",
        label="Figure 16",
        title=f"microbatch size, 91B on 64 {_GPU} at TP 8 PP 8",
        tables=("Fig 16",),
        axis="microbatch size",
        place=_column("microbatch"),
        series=_batch,
        finding=choice("microbatch size", "microbatch "),
    ),
    Study(
        name="fig17",
        label="Figure 17",
        title=f"activation recomputation, 145B on 128 {_GPU} at TP 8 PP 16",
        tables=("Fig 17",),
        axis="batch size",
        place=_column("global_batch"),
        series=_either("recompute", "full", (_WITH, _WITHOUT)),
        finding=recomputation_finding(_WITH, _WITHOUT),
        cells=partial(figure_cells, rate="sequences_per_s"),
        rate="sequences_per_s",
        remark="Without recomputation the paper stops at batch 8: larger ones need it to fit.",
    ),
    Study(
        name="fig18",
        label="Figure 18",
        title=f"scatter/gather of pipeline messages, 175B on 96 {_GPU}, interleaved",
        tables=("Fig 18", "Fig 12"),
        axis="batch size",
        place=_column("global_batch"),
        series=_either("scatter_gather", "y", (_SCATTER, _WHOLE)),
        finding=comparison("Rate with scatter/gather over that without", _SCATTER, _WHOLE),
        keeps=lambda row: row.text("schedule") == "interleaved",
        remark="The runs with scatter/gather are the interleaved ones of Figure 12: the same job, so the same rows.",
    ),
)
"""All studies, in the order of the paper."""
