"""Seconds of one rank class: its chunks, messages, gradient buckets and the tail of the step."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from traincast.costs import Machine, machine_of
from traincast.costs.collectives import NetworkConstants, collective_seconds, fill_s, message_seconds, wires
from traincast.costs.memory_bound import optimizer_seconds
from traincast.lower.ahead import parameters_ahead_s, updated_bytes
from traincast.lower.chunk import ChunkTime, Segment, chunk_time
from traincast.lower.context import ring_positions
from traincast.lower.hoststates import host_update
from traincast.lower.job import Job
from traincast.lower.offload import host_seats
from traincast.lower.program import ChunkCost, ChunkKey, Label, ReduceBucket, TailOp
from traincast.lower.ragged import last_job, mean_time
from traincast.lower.rings import CONTEXT_FAMILIES
from traincast.lower.scales import scales_s
from traincast.lower.seats import Networks, Seats
from traincast.lower.sharded import Root, family_of, in_passes, owners, pass_spans, sharding_of
from traincast.lower.split import SEGMENTS
from traincast.lower.stages import ChunkPart, block_of, first_forward_segments, forward_segments
from traincast.model.parameters import (
    embedding_parameters,
    head_parameters,
    layer_parameters,
    norm_parameters,
    stage_parameters,
)
from traincast.schedule import AUTOMATIC, SPLIT, Pass, build, links, neighbours, parts_of
from traincast.schedule.placement import Neighbours
from traincast.topology import Span

SegmentsOf = Callable[[Job, ChunkPart], tuple[Segment, ...]]


@dataclass(frozen=True)
class ClassCosts:
    """What a rank class needs beside its wiring."""

    chunks: Mapping[ChunkKey, ChunkCost]
    buckets: tuple[ReduceBucket, ...]
    tail: tuple[TailOp, ...]


class CostBook:
    """Costs of classes of one job on one machine; equal parts over equal spans are computed once."""

    def __init__(
        self, job: Job, parts: tuple[ChunkPart, ...], machine: Machine | None = None, networks: Networks = ()
    ) -> None:
        """Prepare the machine (by default the job's own GPU); nothing is computed yet.

        `networks` has, by family, the constants of all stacks that meet in a group; where it is empty the machine's
        own are those of every group.
        """
        self.job = job
        self.parts = parts
        self.machine = machine or machine_of(job.gpu, job.profile, job.recipe.precision, job.cluster.gpus_per_node)
        self.networks = dict(networks)
        self.sharding = sharding_of(job)
        self._times = _times_of(_pass_key(job, self.machine))
        self._costs: dict[tuple[object, ...], ClassCosts] = {}
        small = last_job(job)
        self.last = CostBook(small, parts, self.machine, networks) if small is not None else None
        """Costs of the last microbatch, where that is smaller than the others."""

    def collective_s(self, op: str, size: float, family: str, spans: Mapping[str, Span]) -> float:
        """Time of a collective in the rank's group of a family [s]: the slowest of its members' stacks counts."""
        return max(_collective_s(op, size, spans[family], network) for network in self.stacks(family))

    def stacks(self, family: str) -> tuple[NetworkConstants, ...]:
        """Network constants of all stacks that meet in the rank's group of a family."""
        return self.networks.get(family) or (self.machine.network,)

    def time(self, kind: Pass, part: ChunkPart, spans: Mapping[str, Span]) -> ChunkTime:
        """Time of one pass over a chunk's contents; the mean over microbatches where the last one is smaller."""
        whole = self._time(SEGMENTS[kind], part, spans)
        if self.last is None:
            return whole
        return mean_time(whole, self.last.time(kind, part, spans), self.job.microbatches)

    def _time(self, lowered: SegmentsOf, part: ChunkPart, spans: Mapping[str, Span]) -> ChunkTime:
        inside = pass_spans(self.job, spans, SINGLE)
        if self.job.mesh.cp > 1:
            inside |= {family: spans.get(family, SINGLE) for family in CONTEXT_FAMILIES}
        key = (lowered, part, *inside.values())
        if key not in self._times:
            self._times[key] = chunk_time(lowered(self.job, part), self.machine, inside)
        return self._times[key]

    def forward_s(self, part: ChunkPart, spans: Mapping[str, Span]) -> float:
        """Time of one forward pass over a chunk's contents [s]."""
        return self._time(forward_segments, part, spans).duration_s

    def first_gather_s(self, stage: int, spans: Mapping[str, Span]) -> float:
        """What gathering a stage's parameters once a step adds to the first forward pass of each of its chunks [s].

        On all stages at once, while the first microbatch is on its way: the step waits for one of them.
        """
        parts = [self.parts[index] for index in self.held(stage)]
        first = sum(self._time(first_forward_segments, part, spans).duration_s for part in parts)
        return first - sum(self._time(forward_segments, part, spans).duration_s for part in parts)

    def costs(self, stage: int, spans: Mapping[str, Span]) -> ClassCosts:
        """Costs of a class on `stage` whose groups have these spans; stages that hold alike parts cost alike."""
        name, pp, v = self.job.recipe.schedule, self.job.mesh.pp, self.job.chunks
        around = neighbours(name, pp, v)
        kinds: tuple[Pass, ...] = ("F", "B", "I", "W") if name in SPLIT else ("F", "B")
        parts = tuple(self.parts[index] for index in self.held(stage))
        ways = tuple(way_out(kind, around[stage, chunk]) for chunk in range(len(parts)) for kind in ("F", "B"))
        key = (stage if name in SPLIT else None, parts, ways, *spans.items())
        if key in self._costs:
            return self._costs[key]
        times = {(kind, part): self.time(kind, part, spans) for part in set(parts) for kind in kinds}
        sends = {way: self.message(way, spans) for way in (None, "next", "previous")}
        chunks: dict[ChunkKey, ChunkCost] = {}
        for chunk, part in enumerate(parts):
            for kind in kinds:
                send_s = sends[way_out(kind, around[stage, chunk])]
                reduced_s = scales_s(self, part, spans) if kind != "W" else 0.0
                chunks[kind, chunk] = self.of_pass(times[kind, part], send_s, reduced_s)
        self._costs[key] = ClassCosts(chunks, self.buckets(stage, spans), self.tail(stage, spans))
        return self._costs[key]

    def of_pass(self, time: ChunkTime, send_s: float, reduced_s: float) -> ChunkCost:
        """Cost of a pass; in a pipeline with what the host takes to exchange and wait around it (`pass.fixed`).

        `reduced_s`: what it loses to the scales of fp8 tensors.
        """
        labels_s, more_s = dict(time.labels_s), 0.0
        fixed_s = self.machine.profile["pass.fixed"] if self.job.mesh.pp > 1 else 0.0
        ends: tuple[tuple[Label, float], ...] = (("host", fixed_s), ("dp", reduced_s))
        for label, seconds in ends:
            if seconds > 0.0:
                labels_s[label] = labels_s.get(label, 0.0) + seconds
                more_s += seconds
        return ChunkCost(time.duration_s + more_s, labels_s, send_s)

    def message(self, way: str | None, spans: Mapping[str, Span]) -> float:
        """Transfer of one activation (or its gradient) to a neighbouring stage, `next` or `previous` [s]; 0 for None.

        With scatter/gather each tensor-parallel rank sends 1/t of it and the receivers gather it over NVLink
        (SC21 §4.1); under sequence parallelism a rank holds 1/t anyway; else every rank sends all of it.
        """
        if way is None or way not in spans:
            return 0.0
        recipe, tp = self.job.recipe, self.job.mesh.tp
        size, gather = self.job.hidden_bytes, 0.0
        if tp > 1 and (recipe.scatter_gather or recipe.sequence_parallel):
            gather = 0.0 if recipe.sequence_parallel else self.collective_s("all_gather", size, "tp", spans)
            size /= tp
        return max(message_seconds(size, spans[way], network) for network in self.stacks(way)) + gather

    def buckets(self, stage: int, spans: Mapping[str, Span]) -> tuple[ReduceBucket, ...]:
        """Gradient buckets: one per weight-bearing part of the last backward when overlapped, else one at the end."""
        if "dp" not in spans or self.sharding.reduces_each:
            return ()
        recipe = self.job.recipe
        if not self.job.overlaps_gradients:
            size = self.stage_parameters(stage) * float(recipe.reduce_bytes)
            return (ReduceBucket(None, 0.0, self.reduce_s(size, spans), size),)
        found = []
        held = self.held(stage)
        for chunk, index in sorted(enumerate(held), key=lambda one: -one[1]):
            marks = self.time(self._last_gradient(stage, chunk), self.parts[index], spans).marks_s
            sizes = self.part_sizes(self.parts[index], beside_embedding=0 in held)
            found += [
                ReduceBucket(chunk, ready, self.bucketed_s(size, spans), size)
                for ready, size in zip(marks, sizes, strict=True)
            ]
        return tuple(found)

    def held(self, stage: int) -> tuple[int, ...]:
        """The parts of the model that a stage holds, by chunk."""
        return parts_of(self.job.recipe.schedule, self.job.mesh.pp, self.job.chunks, stage)

    def _last_gradient(self, stage: int, chunk: int) -> Pass:
        """The kind of pass that completes the weight gradients of a chunk: B in one piece, or W."""
        name = self.job.recipe.schedule
        if name not in SPLIT or name in AUTOMATIC:
            return "W" if name in SPLIT else "B"
        key = (name, self.job.mesh.pp, self.job.microbatches, self.job.chunks)
        on_stage = links(key, build(*key))[stage]
        return "W" if on_stage.instructions[on_stage.last_gradient[chunk]].kind == "W" else "B"

    def part_sizes(self, part: ChunkPart, *, beside_embedding: bool) -> list[float]:
        """Gradient bytes of head, layers (last to first) and embedding, in the order of the backward's marks.

        A tied head has no gradient of its own on the rank that holds the embedding too.
        """
        model, tp = self.job.model, self.job.mesh.tp
        width = float(self.job.recipe.reduce_bytes)
        sizes: list[float] = []
        if part.head:
            own = 0 if beside_embedding and model.tied_embeddings else head_parameters(model, tp)
            sizes.append(width * (own + norm_parameters(model)))
        sizes += [width * layer_parameters(model, tp)] * part.layers
        if part.embedding:
            sizes.append(width * embedding_parameters(model, tp))
        return sizes

    def reduce_s(self, size: float, spans: Mapping[str, Span]) -> float:
        """Gradient reduction of `size` bytes: all-reduce, or reduce-scatter where states are sharded.

        Groups that shard among themselves then sum their parts over the replicas.
        """
        if self.sharding.sums_whole or self.sharding.shards == 1:
            return self.collective_s("all_reduce", size, "dp", spans)
        own_s = self.collective_s("reduce_scatter", size, family_of("dp", spans), spans)
        if "replica" not in spans:
            return own_s
        return own_s + self.collective_s("all_reduce", size / self.sharding.shards, "replica", spans)

    def bucketed_s(self, size: float, spans: Mapping[str, Span]) -> float:
        """The same in buckets of the recipe's size, one after the other."""
        count = max(1, math.ceil(size / self.job.bucket_bytes))
        return count * self.reduce_s(size / count, spans)

    def stage_parameters(self, stage: int) -> int:
        """Parameters on one rank of a stage."""
        model, tp, root = self.job.model, self.job.mesh.tp, self.root(stage)
        return stage_parameters(model, tp, self.layers(stage), first=root.embedding, last=root.head).total

    def root(self, stage: int) -> Root:
        """What a stage holds beside layers."""
        held = [self.parts[index] for index in self.held(stage)]
        return Root(any(part.embedding for part in held), any(part.head for part in held))

    def updated_s(self, stage: int, spans: Mapping[str, Span]) -> float:
        """Parameters that the update of a sharded optimiser left to one rank each, to all of its group [s]: a gather,
        or broadcasts of whole matrices by their owners (`owners`).

        A broadcast moves all of its bytes over every link, where a gather leaves out a rank's own. One begins when the
        one before has ended: its root stands right before that one's in NCCL's rings (0 7 6 ... 1 in a node), and so
        ends its chain. The chain of all ranks has to fill anew for each of them.
        """
        size, family = updated_bytes(self.job, self.stage_parameters(stage), self.layers(stage)), family_of("dp", spans)
        ranks = spans[family].ranks if family in spans else 1
        if not self.machine.profile.traits.owners or ranks == 1:
            return self.collective_s("all_gather", size, family, spans)
        count = owners(self.job, self.root(stage), self.layers(stage))
        fills_s = (fill_s(size / count, wires(spans[family], one), one) for one in self.stacks(family))
        return self.collective_s("all_gather", size * ranks / (ranks - 1), family, spans) + count * max(fills_s)

    def layers(self, stage: int) -> int:
        """Layers of a stage, all its chunks together."""
        return sum(self.parts[index].layers for index in self.held(stage))

    def embedding_bytes(self) -> float:
        """Gradient bytes of the tied embedding that a rank of the first or last stage holds."""
        rows = head_parameters(self.job.model, self.job.mesh.tp)
        return rows * float(self.job.recipe.reduce_bytes)

    def tail(self, stage: int, spans: Mapping[str, Span]) -> tuple[TailOp, ...]:
        """What follows the gradients: tied embedding, gradient norm over the replica, optimiser, parameter gather."""
        job = self.job
        ops: list[TailOp] = []
        if "embedding" in spans and job.model.tied_embeddings:
            seconds = self.collective_s("all_reduce", self.embedding_bytes(), "embedding", spans)
            ops.append(TailOp("embedding", "dp", seconds))
        if "model" in spans and not job.recipe.post_validation:
            ops.append(TailOp("gradient norm", "optimizer", self.collective_s("all_reduce", 4.0, "model", spans)))
        if job.recipe.zero_stage >= 2 and self.sharding.shards > 1:
            seconds = self.collective_s("all_reduce", 4.0, family_of("dp", spans), spans)
            ops.append(TailOp("gradient norm of shards", "optimizer", seconds))
        parameters, shards = self.stage_parameters(stage), self.sharding.shards
        if job.recipe.offload_states == "none":
            traffic = self.machine.profile["optimizer.bytes_per_parameter"]
            update_s = optimizer_seconds(parameters / shards, traffic, self.machine.memory) / self.machine.speed
            ops.append(TailOp("optimizer", "optimizer", update_s))
        else:
            ops += host_update(self, parameters / shards)
        if self.sharding.gathers == "update" and job.recipe.overlap_params:
            ops.append(TailOp("parameters", "dp", parameters_ahead_s(self, stage, spans)))
        elif self.sharding.gathers == "update":
            ops.append(TailOp("parameters", "dp", self.updated_s(stage, spans)))
        elif self.sharding.gathers == "step":
            ops.append(TailOp("parameters", "dp", self.first_gather_s(stage, spans)))
        ops.append(TailOp("step", "host", self.machine.profile["step.fixed"]))
        return tuple(ops)


@lru_cache(maxsize=4096)
def _collective_s(op: str, size: float, span: Span, network: NetworkConstants) -> float:
    """The time of a collective [s], worked out once: of a sweep's many shapes few differ in it."""
    return collective_seconds(op, size, span, network)


def _pass_key(job: Job, machine: Machine) -> tuple[object, ...]:
    """All of a job that the time of a pass over given layers depends on, beside the spans of its groups.

    Of a sweep's shapes many differ only in how often such a pass runs, and where.
    """
    recipe = replace(job.recipe, global_batch=1, vpp=1, schedule="none", stage_layers=None)
    how = sharding_of(job)
    inside = (how, job.bucket_bytes) if in_passes(job) or how.gathers == "step" else ()
    return (machine, job.profile, job.cluster, job.seat, job.model, block_of(job), recipe, *inside)


@lru_cache(maxsize=256)
def _times_of(key: tuple[object, ...]) -> dict[tuple[object, ...], ChunkTime]:
    """Times of passes that are known already for a key (`_pass_key`), to be added to."""
    return {}


def way_out(kind: Pass, around: Neighbours) -> str | None:
    """Where the output of a pass goes, `next` or `previous`; None where it stays on the stage or ends there."""
    hop = around.after if kind == "F" else None if kind == "W" else around.before
    return None if hop is None or hop.way == 0 else "next" if hop.way > 0 else "previous"


class CostBooks:
    """The cost book of every rank: one for each machine and the stacks that its groups meet."""

    def __init__(self, job: Job, parts: tuple[ChunkPart, ...], seats: Seats) -> None:
        """Prepare the books; nothing is computed yet."""
        self.seats = seats
        self._books: dict[tuple[int, Networks, int | None, int], CostBook] = {}
        self.job, self._parts, self._positions = job, parts, ring_positions(job)
        self._hosts = host_seats(job)

    def at(self, rank: int) -> CostBook:
        """The book of a rank's machine and groups, of its place in a ring whose ranks have unequal work, and of its way
        to the host where something is copied there."""
        position = None if self._positions is None else int(self._positions[rank])
        host = self.job.seat if self._hosts is None else int(self._hosts[rank])
        key = (int(self.seats.of_rank[rank]), self.seats.networks(rank), position, host)
        if key not in self._books:
            parts = self._parts
            if position is not None:
                parts = tuple(replace(part, position=position) for part in parts)
            self._books[key] = CostBook(replace(self.job, seat=host), parts, self.seats.machines[key[0]], key[1])
        return self._books[key]


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
