"""Who computes where: the machine of each rank, and the software stacks that meet in its groups."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from traincast.costs import Machine, machine_of
from traincast.costs.collectives import NetworkConstants
from traincast.lower.job import Job
from traincast.lower.spans import RankSpans

Ints = npt.NDArray[np.int64]
Networks = tuple[tuple[str, tuple[NetworkConstants, ...]], ...]


@dataclass(frozen=True, eq=False)
class Seats:
    """`machines[of_rank[r]]` computes for mesh rank r.

    `stack_of` gives the part (GPU model under its profile) of each machine, `stacks` the network constants of each
    part, and `met[family]` the parts in the group of each rank as bits; it is empty where all ranks have one part.
    """

    machines: tuple[Machine, ...]
    of_rank: Ints
    stack_of: tuple[int, ...] = (0,)
    stacks: tuple[NetworkConstants, ...] = ()
    met: Mapping[str, Ints] = field(default_factory=dict)

    @property
    def uniform(self) -> bool:
        """Whether all ranks have the same machine."""
        return len(self.machines) == 1

    def networks(self, rank: int) -> Networks:
        """The network constants of all parts in each group of a rank, by family."""
        return tuple(
            (name, tuple(self.stacks[part] for part in range(len(self.stacks)) if int(bits[rank]) >> part & 1))
            for name, bits in self.met.items()
        )


def take_seats(job: Job, spans: RankSpans) -> Seats:
    """The machines of a job's ranks: GPU model and speed as the cluster has them where the rank is placed."""
    ranks = job.mesh.physical(np.arange(job.mesh.world))
    speeds = job.cluster.gpu_speed[ranks]
    if not job.others and (speeds == speeds[0]).all():
        return Seats((_machine(job, 0, float(speeds[0])),), np.zeros(job.mesh.world, dtype=np.int64))
    names = {part.gpu.name: number for number, part in enumerate(job.parts)}
    part = np.array([names.get(job.cluster.gpu_model[gpu], 0) for gpu in ranks.tolist()], dtype=np.int64)
    kinds, of_rank = np.unique(np.stack([part, speeds]), axis=1, return_inverse=True)
    stack_of = tuple(int(number) for number in kinds[0].tolist())
    machines = tuple(_machine(job, number, speed) for number, speed in zip(stack_of, kinds[1].tolist(), strict=True))
    met = _met(part, spans) if len(set(stack_of)) > 1 else {}
    stacks = tuple(_machine(job, number, 1.0).network for number in range(len(job.parts)))
    return Seats(machines, of_rank.reshape(-1), stack_of, stacks, met)


def _machine(job: Job, part: int, speed: float) -> Machine:
    one = job.parts[part]
    return machine_of(one.gpu, one.profile, job.recipe.precision, job.cluster.gpus_per_node, speed)


def _met(part: Ints, spans: RankSpans) -> dict[str, Ints]:
    """The parts in each rank's groups as bits, by family; messages go by sender and by receiver."""
    found: dict[str, Ints] = {}
    for name, groups in spans.groups.items():
        seen = np.bitwise_or.reduce(np.left_shift(1, part[groups]), axis=1)
        if name == "next":
            found |= {"next": _own(part), "previous": _own(part)}
            found["next"][groups[:, 0]] = seen
            found["previous"][groups[:, 1]] = seen
        else:
            found[name] = _own(part)
            found[name][groups] = seen[:, None]
    return found


def _own(part: Ints) -> Ints:
    return np.left_shift(1, part)


def mean_peak_flops_per_s(job: Job) -> float:
    """Dense peak of the recipe's precision, as a mean over the ranks' GPUs (speeds left out)."""
    if not job.others:
        return job.gpu.peak(job.recipe.precision)
    names = {part.gpu.name: part.gpu for part in job.parts}
    ranks = job.mesh.physical(np.arange(job.mesh.world)).tolist()
    models, counts = np.unique([job.cluster.gpu_model[gpu] for gpu in ranks], return_counts=True)
    peaks = [names.get(model, job.gpu).peak(job.recipe.precision) for model in models.tolist()]
    return float(np.dot(peaks, counts) / counts.sum())


def stage_memory_bytes(job: Job) -> tuple[float, ...]:
    """Memory of the smallest GPU of each stage."""
    if not job.others:
        return (job.gpu.memory_bytes,) * job.mesh.pp
    sizes = {part.gpu.name: part.gpu.memory_bytes for part in job.parts}
    ranks = job.mesh.physical(np.arange(job.mesh.world)).tolist()
    memory = np.array([sizes.get(job.cluster.gpu_model[gpu], job.gpu.memory_bytes) for gpu in ranks])
    stage = job.mesh.coordinates()["pp"]
    return tuple(float(memory[stage == one].min()) for one in range(job.mesh.pp))
