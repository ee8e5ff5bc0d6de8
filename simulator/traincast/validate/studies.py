"""Studies: several shapes of one model on the same GPUs, where a forecast must find the best and rank the rest.

A family's overall rank correlation says little where its rows are different amounts of work. What a user needs is
the order of the shapes that were open to the same job, and what the predicted best costs beside the measured best.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from traincast.validate.rows import PublishedRow
from traincast.validate.score import FamilyScore, RowScore, spearman

SAME_COLUMNS = (
    "family", "hidden", "layers", "heads", "kv_heads", "head_dim", "ffn_hidden", "vocab", "seq", "gated_mlp", "mla",
    "experts", "topk", "moe_ffn_hidden", "shared_experts", "first_dense_layers", "gpu", "gpus", "gpus_per_node",
    "nics_per_node", "nic_gbit_per_s", "nic_kind", "precision", "attention", "stack",
)  # fmt: skip
"""What rows of one study share: model, GPUs, precision, software."""

CHOICE_COLUMNS = (
    "tp", "pp", "cp", "ep", "etp", "dp", "vpp", "microbatch", "schedule", "recompute", "sequence_parallel",
    "zero_stage", "fsdp_shard", "scatter_gather", "overlap_dp", "overlap_tp", "p2p_overlap", "compile", "offload",
    "stage_layers", "embedding_as_layer", "cp_kind", "dispatcher", "remark",
)  # fmt: skip
"""What was open to whoever ran them; rows alike in these are one shape, measured more than once."""

BATCH_SLACK = 0.05
"""Batches this close are one job (2,016 where 2,048 does not divide); times are then compared per sequence."""


@dataclass(frozen=True)
class ShapeTimes:
    """One shape of a study: the rows that measured it, mean seconds per sequence measured and predicted."""

    ids: tuple[str, ...]
    measured_s: float
    predicted_s: float


@dataclass(frozen=True)
class Study:
    """Two shapes or more of one model on the same GPUs with the same batch (the smallest of them is `batch`)."""

    family: str
    model: str
    gpus: int
    batch: int
    shapes: tuple[ShapeTimes, ...]

    @property
    def predicted_best(self) -> ShapeTimes:
        """The shape that the forecast would choose; the first of equals."""
        return min(self.shapes, key=lambda shape: shape.predicted_s)

    @property
    def measured_best(self) -> ShapeTimes:
        """The shape that was fastest; the first of equals."""
        return min(self.shapes, key=lambda shape: shape.measured_s)

    @property
    def regret_pct(self) -> float:
        """How much longer the predicted best was measured to take than the measured best, in percent."""
        return 100.0 * (self.predicted_best.measured_s / self.measured_best.measured_s - 1.0)

    @property
    def spearman(self) -> float | None:
        """Rank correlation of the shapes' times; None for fewer than three shapes."""
        measured = np.array([shape.measured_s for shape in self.shapes], dtype=np.float64)
        return spearman(measured, np.array([shape.predicted_s for shape in self.shapes], dtype=np.float64))


def studies_of(scores: Sequence[RowScore], rows: Sequence[PublishedRow]) -> tuple[Study, ...]:
    """All studies among the scored rows, in the order in which they appear; `rows` are the published ones."""
    by_id: dict[str, PublishedRow] = {}
    for row in rows:
        by_id.setdefault(row.id, row)
    alike: dict[tuple[str, ...], list[tuple[PublishedRow, RowScore]]] = {}
    for score in scores:
        own = by_id.get(score.id)
        if score.status == "scored" and own is not None and own.count("global_batch"):
            alike.setdefault(tuple(own.text(column) for column in SAME_COLUMNS), []).append((own, score))
    return tuple(study for group in alike.values() for study in _by_batch(group))


def with_regret(families: Sequence[FamilyScore], studies: Sequence[Study]) -> tuple[FamilyScore, ...]:
    """The families' scores with those of their studies: how many, regret, rank correlation of shapes."""
    return tuple(_with_regret(one, [study for study in studies if study.family == one.family]) for one in families)


def _with_regret(family: FamilyScore, own: Sequence[Study]) -> FamilyScore:
    if not own:
        return family
    regrets = [study.regret_pct for study in own]
    ranks = [rank for study in own if (rank := study.spearman) is not None]
    return replace(
        family,
        studies=len(own),
        regret_pct=float(np.mean(regrets)),
        worst_regret_pct=max(regrets),
        spearman_in_studies=float(np.mean(ranks)) if ranks else None,
        worst_spearman_in_studies=min(ranks) if ranks else None,
    )


def _by_batch(group: Sequence[tuple[PublishedRow, RowScore]]) -> Iterator[Study]:
    """One study for each batch of `group`, whose rows share model and GPUs."""
    pending = sorted(group, key=lambda pair: pair[0].essential("global_batch"))
    while pending:
        least = pending[0][0].essential("global_batch")
        own = [pair for pair in pending if pair[0].essential("global_batch") <= (1.0 + BATCH_SLACK) * least]
        pending = pending[len(own) :]
        shapes = tuple(_shapes(own))
        if len(shapes) > 1:
            row = own[0][0]
            yield Study(row.family, row.text("model"), row.essential("gpus"), least, shapes)


def _shapes(pairs: Sequence[tuple[PublishedRow, RowScore]]) -> Iterator[ShapeTimes]:
    by_choice: dict[tuple[str, ...], list[tuple[PublishedRow, RowScore]]] = {}
    for row, score in pairs:
        by_choice.setdefault(tuple(row.text(column) for column in CHOICE_COLUMNS), []).append((row, score))
    for same in by_choice.values():
        times = np.array([(score.measured_s, score.predicted_s) for _, score in same], dtype=np.float64)
        batches = np.array([row.essential("global_batch") for row, _ in same], dtype=np.float64)
        measured, predicted = (times / batches[:, None]).mean(axis=0)
        yield ShapeTimes(tuple(score.id for _, score in same), float(measured), float(predicted))
