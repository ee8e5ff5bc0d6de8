"""What a checkpoint of a job is: files, bytes, and the time to write and to read it.

A checkpoint holds parameters and optimiser states, no gradients and no activations: in half-precision training 2 bytes
of a parameter, and 12 of its single-precision copy and Adam's two moments. Each distinct share of them is written once,
into a file of the rank that holds it in the first replica; every rank reads what it holds.

References
----------
[1] Narayanan et al. 2021 (SC21), §5.10: the 1T model's checkpoint is 13.8 TB; 384 nodes load it at 1 TB/s, the most
    that the file system reads, and save it at 273 GB/s.
[2] Rajbhandari et al. 2020, "ZeRO", §5: what each stage leaves on a rank.
"""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from traincast.lower import Job
from traincast.lower.spans import gradient_groups
from traincast.memory import chunk_layers, optimizer_bytes, parameter_bytes, sharding
from traincast.memory.flight import holds_ends
from traincast.memory.job import MemoryJob
from traincast.model import stage_parameters

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

STORAGE_BYTES_PER_S: Final = 100e9
"""Assumed rate of a shared parallel file system. SC21's wrote 273 GB/s and read 1 TB/s ([1])."""

NODE_BYTES_PER_S: Final = 25e9
"""Assumed rate between one node and the file system: a storage adapter of 200 Gbit/s."""


@dataclass(frozen=True)
class Storage:
    """Rates of a file system, the same for writing and reading [bytes/s]: of all of it, and of one node's link."""

    bytes_per_s: float = STORAGE_BYTES_PER_S
    node_bytes_per_s: float = NODE_BYTES_PER_S


@dataclass(frozen=True)
class Checkpoint:
    """One checkpoint: `files` of together `size_bytes`, the largest of `largest_file_bytes`, from `nodes` nodes.

    `read_bytes` leave the file system when all ranks load: a node reads what several of its ranks need once.
    """

    files: int
    size_bytes: float
    largest_file_bytes: float
    nodes: int
    read_bytes: float
    save_s: float
    load_s: float
    rule: str

    def as_dict(self) -> dict[str, Any]:
        """The checkpoint as JSON shows it."""
        return {
            "files": self.files,
            "bytes": self.size_bytes,
            "largest_file_bytes": self.largest_file_bytes,
            "nodes_that_write": self.nodes,
            "bytes_read": self.read_bytes,
            "save_s": self.save_s,
            "load_s": self.load_s,
            "rule": self.rule,
        }


@dataclass(frozen=True)
class _Holdings:
    """Who holds what: a row for each group of ranks with the same weights, a column for each of its ranks.

    `node` and `share` (which share of the states) have that shape; each rank of a row holds `whole_bytes` of the row
    in common with the others, and `part_bytes` that only ranks of its share have.
    """

    node: Ints
    share: Ints
    whole_bytes: Floats
    part_bytes: Floats


def bytes_per_parameter(job: Job) -> int:
    """Parameter and optimiser states: 14 in half precision, 12 in single precision."""
    return parameter_bytes(job.recipe) + optimizer_bytes(job.recipe)


def checkpoint(job: Job, storage: Storage | None = None) -> Checkpoint:
    """The checkpoint of a job, on a file system of those rates (None: as assumed)."""
    rates = storage or Storage()
    held = _holdings(job)
    written = _written_bytes(held, sharding(job.mesh, job.recipe).shards)
    by_node = _by_node(held.node, written)
    read = _read_by_node(held)
    size, loaded = float(written.sum()), float(read.sum())
    return Checkpoint(
        files=int((written > 0.0).sum()),
        size_bytes=size,
        largest_file_bytes=float(written.max()),
        nodes=int((by_node > 0.0).sum()),
        read_bytes=loaded,
        save_s=max(size / rates.bytes_per_s, float(by_node.max()) / rates.node_bytes_per_s),
        load_s=max(loaded / rates.bytes_per_s, float(read.max()) / rates.node_bytes_per_s),
        rule=_rule(job),
    )


def _holdings(job: Job) -> _Holdings:
    """Bytes of parameters and states by rank; ZeRO says which of them are shares ([2])."""
    mesh, recipe = job.mesh, job.recipe
    how = sharding(mesh, recipe)
    groups = gradient_groups(mesh, recipe.schedule)
    stages = mesh.coordinates()["pp"][groups[:, 0]]
    parameters = np.array(_stage_parameters(job), dtype=np.float64)[stages]
    stored, states = parameters * parameter_bytes(recipe), parameters * optimizer_bytes(recipe)
    apart = {0: 0.0 * stored, 3: stored + states}.get(recipe.zero_stage, states)
    share = np.broadcast_to(np.arange(groups.shape[1]) % how.shards, groups.shape)
    node = job.cluster.node_index[mesh.physical(groups)]
    return _Holdings(node, share, stored + states - apart, apart / how.shards)


def _stage_parameters(job: Job) -> list[int]:
    """Parameters of one tensor-parallel rank of each stage."""
    held = MemoryJob(job.model, job.mesh, job.recipe)
    found = []
    for stage, chunks in enumerate(chunk_layers(job.model, job.mesh, job.recipe)):
        first, last = holds_ends(held, stage)
        found.append(stage_parameters(job.model, job.mesh.tp, sum(chunks), first=first, last=last).total)
    return found


def _written_bytes(held: _Holdings, shards: int) -> Floats:
    """What each rank writes, in the shape of the holdings: the first replica its shares, its first rank the rest."""
    written = np.zeros(held.node.shape)
    written[:, :shards] = held.part_bytes[:, None]
    written[:, 0] += held.whole_bytes
    return written


def _by_node(node: Ints, sizes: Floats) -> Floats:
    return np.bincount(node.ravel(), weights=sizes.ravel()).astype(np.float64)


def _read_by_node(held: _Holdings) -> Floats:
    """Bytes that each node reads: every distinct thing that its ranks hold, once."""
    rows = np.broadcast_to(np.arange(len(held.node))[:, None], held.node.shape)
    totals = np.zeros(int(held.node.max()) + 1)
    for key, sizes in ((held.share, held.part_bytes), (np.zeros_like(held.share), held.whole_bytes)):
        distinct = np.unique(np.stack([held.node.ravel(), rows.ravel(), key.ravel()]), axis=1)
        totals += np.bincount(distinct[0], weights=sizes[distinct[1]], minlength=len(totals))
    return totals


def _rule(job: Job) -> str:
    """Which ranks write, in words and numbers."""
    mesh, recipe = job.mesh, job.recipe
    how = sharding(mesh, recipe)
    parts = mesh.tp * mesh.pp
    spelled = " x ".join(f"{axis} {mesh.size(axis)}" for axis in ("tp", "pp") if mesh.size(axis) > 1)
    once = "" if how.replicas == 1 else f" of the first of {how.replicas} replicas"
    if how.shards == 1:
        who = f"each rank{once} ({spelled})" if parts > 1 else f"one rank{once}"
        return f"{who} writes the parameters and states that it holds"
    shards = f"{spelled} x shard {how.shards}" if spelled else f"shard {how.shards}"
    if recipe.zero_stage == 3:
        return f"each rank{once} writes its share of parameters and states ({shards})"
    also = "the parameters too" if parts == 1 else "the parameters of its part of the model too"
    return f"each rank{once} writes its share of the states ({shards}), the first of each group {also}"
