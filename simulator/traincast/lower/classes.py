"""Seconds of one rank class: its chunks, messages, gradient buckets and the tail of the step."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from traincast.costs import Machine
from traincast.costs.collectives import collective_seconds, message_seconds
from traincast.costs.memory_bound import optimizer_seconds
from traincast.lower.chunk import ChunkTime, chunk_time
from traincast.lower.job import Job
from traincast.lower.program import ChunkCost, ChunkKey, ReduceBucket, TailOp
from traincast.lower.stages import ChunkPart, backward_segments, forward_segments
from traincast.model.operators import ACTIVATION_BYTES
from traincast.model.parameters import (
    embedding_parameters,
    head_parameters,
    layer_parameters,
    norm_parameters,
    stage_parameters,
)
from traincast.recipe import BYTES_PER_ELEMENT
from traincast.topology import Span


@dataclass(frozen=True)
class ClassCosts:
    """What a rank class needs beside its wiring."""

    chunks: Mapping[ChunkKey, ChunkCost]
    buckets: tuple[ReduceBucket, ...]
    tail: tuple[TailOp, ...]


class CostBook:
    """Costs of classes of one job; equal parts over equal spans are computed once."""

    def __init__(self, job: Job, parts: tuple[ChunkPart, ...]) -> None:
        """Prepare the machine; nothing is computed yet."""
        self.job = job
        self.parts = parts
        self.machine = Machine(job.gpu, job.profile, job.recipe.precision, job.cluster.gpus_per_node)
        self._times: dict[tuple[str, ChunkPart, Span | None], ChunkTime] = {}

    def time(self, kind: str, part: ChunkPart, spans: Mapping[str, Span]) -> ChunkTime:
        """Time of one pass over a chunk's contents."""
        key = (kind, part, spans.get("tp"))
        if key not in self._times:
            segments = forward_segments(self.job, part) if kind == "F" else backward_segments(self.job, part)
            self._times[key] = chunk_time(segments, self.machine, {"tp": spans.get("tp", SINGLE)})
        return self._times[key]

    def costs(self, stage: int, spans: Mapping[str, Span]) -> ClassCosts:
        """Costs of a class on `stage` whose groups have these spans."""
        pp, total = self.job.mesh.pp, len(self.parts)
        chunks: dict[ChunkKey, ChunkCost] = {}
        for chunk in range(self.job.chunks):
            index = chunk * pp + stage
            part = self.parts[index]
            forward, backward = self.time("F", part, spans), self.time("B", part, spans)
            onward = self.message(spans.get("next"), spans) if index < total - 1 else 0.0
            back = self.message(spans.get("previous"), spans) if index > 0 else 0.0
            chunks["F", chunk] = ChunkCost(forward.duration_s, forward.labels_s, onward)
            chunks["B", chunk] = ChunkCost(backward.duration_s, backward.labels_s, back)
        return ClassCosts(chunks, self.buckets(stage, spans), self.tail(stage, spans))

    def message(self, pair: Span | None, spans: Mapping[str, Span]) -> float:
        """Transfer of one activation (or its gradient) to a neighbouring stage [s].

        With scatter/gather each tensor-parallel rank sends 1/t of it and the receivers gather it over NVLink
        (SC21 §4.1); under sequence parallelism a rank holds 1/t anyway; else every rank sends all of it.
        """
        if pair is None:
            return 0.0
        recipe, tp = self.job.recipe, self.job.mesh.tp
        size = float(recipe.microbatch * recipe.sequence * self.job.model.hidden * ACTIVATION_BYTES)
        network = self.machine.network
        if tp == 1 or not (recipe.scatter_gather or recipe.sequence_parallel):
            return message_seconds(size, pair, network)
        gather = 0.0 if recipe.sequence_parallel else collective_seconds("all_gather", size, spans["tp"], network)
        return message_seconds(size / tp, pair, network) + gather

    def buckets(self, stage: int, spans: Mapping[str, Span]) -> tuple[ReduceBucket, ...]:
        """Gradient buckets: one per weight-bearing part of the last backward when overlapped, else one at the end."""
        group = spans.get("dp")
        if group is None:
            return ()
        recipe = self.job.recipe
        if not self.job.overlaps_gradients:
            size = self.stage_parameters(stage) * float(BYTES_PER_ELEMENT[recipe.gradient_dtype])
            return (ReduceBucket(None, 0.0, self.reduce_s(size, group), size),)
        found = []
        for chunk in reversed(range(self.job.chunks)):
            part = self.parts[chunk * self.job.mesh.pp + stage]
            marks = self.time("B", part, spans).marks_s
            sizes = self.part_sizes(part)
            found += [
                ReduceBucket(chunk, ready, self.bucketed_s(size, group), size)
                for ready, size in zip(marks, sizes, strict=True)
            ]
        return tuple(found)

    def part_sizes(self, part: ChunkPart) -> list[float]:
        """Gradient bytes of head, layers (last to first) and embedding, in the order of the backward's marks."""
        model, tp = self.job.model, self.job.mesh.tp
        width = float(BYTES_PER_ELEMENT[self.job.recipe.gradient_dtype])
        sizes: list[float] = []
        if part.head:
            own = 0 if part.embedding and model.tied_embeddings else head_parameters(model, tp)
            sizes.append(width * (own + norm_parameters(model)))
        sizes += [width * layer_parameters(model, tp)] * part.layers
        if part.embedding:
            sizes.append(width * embedding_parameters(model, tp))
        return sizes

    def reduce_s(self, size: float, group: Span) -> float:
        """Gradient reduction of `size` bytes: all-reduce, or reduce-scatter where states are sharded."""
        op = "reduce_scatter" if self.job.recipe.zero_stage >= 1 else "all_reduce"
        return collective_seconds(op, size, group, self.machine.network)

    def bucketed_s(self, size: float, group: Span) -> float:
        """The same in buckets of the recipe's size, one after the other."""
        count = max(1, math.ceil(size / self.job.recipe.bucket_bytes))
        return count * self.reduce_s(size / count, group)

    def stage_parameters(self, stage: int) -> int:
        """Parameters on one rank of a stage."""
        pp = self.job.mesh.pp
        layers = sum(self.parts[c * pp + stage].layers for c in range(self.job.chunks))
        first, last = stage == 0, stage == pp - 1
        return stage_parameters(self.job.model, self.job.mesh.tp, layers, first=first, last=last).total

    def tail(self, stage: int, spans: Mapping[str, Span]) -> tuple[TailOp, ...]:
        """What follows the gradients: tied embedding, gradient norm over the replica, optimiser, parameter gather."""
        job, network = self.job, self.machine.network
        ops: list[TailOp] = []
        if "embedding" in spans and job.model.tied_embeddings:
            rows = head_parameters(job.model, job.mesh.tp)
            size = rows * float(BYTES_PER_ELEMENT[job.recipe.gradient_dtype])
            ops.append(TailOp("embedding", "dp", collective_seconds("all_reduce", size, spans["embedding"], network)))
        if "model" in spans:
            norm = collective_seconds("all_reduce", 4.0, spans["model"], network)
            ops.append(TailOp("gradient norm", "optimizer", norm))
        parameters = self.stage_parameters(stage)
        shards = spans["dp"].ranks if job.recipe.zero_stage >= 1 and "dp" in spans else 1
        traffic = job.profile["optimizer.bytes_per_parameter"]
        ops.append(
            TailOp("optimizer", "optimizer", optimizer_seconds(parameters / shards, traffic, self.machine.memory))
        )
        if shards > 1:
            size = parameters * float(ACTIVATION_BYTES)
            ops.append(TailOp("parameters", "dp", collective_seconds("all_gather", size, spans["dp"], network)))
        ops.append(TailOp("step", "host", job.profile["step.fixed"]))
        return tuple(ops)


SINGLE = Span(
    ranks=1,
    nodes=1,
    ranks_per_node=1,
    tier="self",
    intra_bytes_per_s=0.0,
    intra_latency_s=0.0,
    inter_bytes_per_s=0.0,
    inter_latency_s=0.0,
    nic_bytes_per_s=0.0,
    sharing=1.0,
)
"""A group of one rank: its collectives take no time."""
