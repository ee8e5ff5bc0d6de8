"""What an error may depend on: numbers of a published row, and words of it."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from traincast.validate.rows import PublishedRow, RowSkippedError

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True)
class Axis:
    """A number that a row states or implies; `value` is None where it does neither."""

    name: str
    label: str
    value: Callable[[PublishedRow], int | None]


def stated(column: str) -> Callable[[PublishedRow], int | None]:
    """The count in a column."""

    def value(row: PublishedRow) -> int | None:
        try:
            return row.count(column)
        except RowSkippedError:
            return None

    return value


def replicas(row: PublishedRow) -> int | None:
    """Data-parallel size: as stated, else the GPUs that TP, PP and CP leave."""
    found, gpus = stated("dp")(row), stated("gpus")(row)
    if found or gpus is None:
        return found
    model_parallel = math.prod(stated(column)(row) or 1 for column in ("tp", "pp", "cp"))
    return gpus // model_parallel or None


def microbatches(row: PublishedRow) -> int | None:
    """Microbatches of one replica in a step, a ragged last one counted."""
    batch, size, dp = stated("global_batch")(row), stated("microbatch")(row), replicas(row)
    return math.ceil(batch / (size * dp)) if batch and size and dp else None


AXES: Final = (
    Axis("tp", "TP", stated("tp")),
    Axis("pp", "PP", stated("pp")),
    Axis("cp", "CP", stated("cp")),
    Axis("dp", "DP", replicas),
    Axis("gpus", "GPUs", stated("gpus")),
    Axis("microbatch", "microbatch [sequences]", stated("microbatch")),
    Axis("microbatches", "microbatches a replica", microbatches),
    Axis("vpp", "chunks a stage", stated("vpp")),
    Axis("hidden", "hidden size", stated("hidden")),
    Axis("layers", "layers", stated("layers")),
    Axis("seq", "sequence [tokens]", stated("seq")),
)
"""All numbers that are looked at, in the order of the figures."""

ALWAYS_DRAWN: Final = ("tp", "pp", "cp", "dp", "gpus", "microbatch", "hidden", "seq")
"""Drawn wherever they vary; the others where the error depends on them most."""

CATEGORIES: Final = {
    "precision": "precision",
    "cp_kind": "kind of CP",
    "schedule": "schedule",
    "recompute": "recomputation",
    "zero_stage": "ZeRO stage",
    "fsdp_shard": "size of a shard group",
    "gpu": "GPU",
    "stack": "software",
    "compile": "compilation",
    "overlap_tp": "overlap of TP",
    "remark": "remark",
    "table": "table or figure",
    "model": "model",
}
"""Columns of words that may tell rows apart and what to call them; the first where several tell as much."""

MOST_MODELS: Final = 7
"""More models than this are told apart by their sizes, not by colours."""


def varying(axes: "Iterable[Axis]", rows: Sequence[PublishedRow]) -> tuple[Axis, ...]:
    """The axes on which the rows have two values or more; DP not where it is the number of GPUs."""
    found = [axis for axis in axes if len({axis.value(row) for row in rows} - {None}) > 1]
    same = all(replicas(row) == stated("gpus")(row) for row in rows)
    return tuple(axis for axis in found if not (same and axis.name == "dp"))


def varying_categories(rows: Sequence[PublishedRow]) -> tuple[str, ...]:
    """The columns of words in which the rows differ; what is not stated counts as a word of its own.

    That rows without a pipeline have no schedule, and those without CP no kind of it, tells nothing that PP and CP do
    not, so words of the others must differ.
    """
    needs = {"schedule": stated("pp"), "cp_kind": stated("cp")}
    found = []
    for column in CATEGORIES:
        size = needs.get(column)
        concerned = [row for row in rows if size is None or (size(row) or 1) > 1]
        words = {row.text(column) for row in concerned}
        if len(words) > 1 and (column != "model" or len(words) <= MOST_MODELS):
            found.append(column)
    return tuple(found)


def word(row: PublishedRow, column: str) -> str:
    """What a row says in a column of words."""
    if column == "cp_kind" and (stated("cp")(row) or 1) == 1:
        return "no CP"
    if column == "schedule" and (stated("pp")(row) or 1) == 1:
        return "no pipeline"
    return row.text(column) or ("none" if column == "remark" else "not stated")
