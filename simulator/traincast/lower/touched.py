"""Which groups of a job the defects of its cluster touch, and whether these cost another time than on the clean one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from traincast.lower.job import Job
from traincast.lower.spans import gradient_groups
from traincast.mesh import Mesh
from traincast.schedule import meets_itself
from traincast.topology import Cluster, Loss, Span, family_spans
from traincast.topology.passing import Passing, passing

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Price = tuple[tuple[Span, ...], float]
"""Spans of a group (of a pipeline: of its messages) and the speed of its slowest GPU."""

SHOWN_RANKS = 8


@dataclass(frozen=True)
class TouchedFamily:
    """Of so many `groups` of a family `touched` pass a part; of these `changed` cost another time than on the clean
    cluster, for this defect or another one.

    `first_ranks` are mesh ranks of the first one touched, as many as are shown.
    """

    family: str
    groups: int
    touched: int
    changed: int
    first_ranks: tuple[int, ...]


@dataclass(frozen=True)
class Defect:
    """A part, what it lost in words, the share of it that is left, and the families of groups that it touches.

    `alone_loss_s` is how much longer the step takes with this defect and no other; None where nobody asked.
    """

    part: str
    loss: str
    left: float
    families: tuple[TouchedFamily, ...]
    alone_loss_s: float | None = None


@dataclass(frozen=True)
class Degradation:
    """The defects of a cluster, and what they cost a step beside the same step on the clean cluster.

    `most_exposed_s` is, by axis, the longest that any GPU waits for it in a step, where the traffic's is the mean.
    """

    defects: tuple[Defect, ...]
    clean_step_time_s: float
    step_time_s: float
    most_exposed_s: Mapping[str, float] = field(default_factory=dict)

    @property
    def loss_s(self) -> float:
        """How much longer the step takes."""
        return self.step_time_s - self.clean_step_time_s

    @property
    def loss_percent(self) -> float:
        """The loss as a percentage of the clean step."""
        return 100.0 * self.loss_s / self.clean_step_time_s

    @property
    def sum_alone_s(self) -> float | None:
        """The losses of the defects, each alone, added up; None where one is not known. All together cost as much only
        where they neither hide nor worsen each other."""
        alone = [one.alone_loss_s for one in self.defects]
        return None if None in alone else sum(loss for loss in alone if loss is not None)

    def as_dict(self) -> dict[str, Any]:
        """The statement as JSON shows it."""
        return {
            "defects": [
                {
                    **{"part": one.part, "loss": one.loss, "left": one.left, "alone_loss_s": one.alone_loss_s},
                    "families": [{**vars(family), "first_ranks": list(family.first_ranks)} for family in one.families],
                }
                for one in self.defects
            ],
            "clean_step_time_s": self.clean_step_time_s,
            "step_time_s": self.step_time_s,
            "loss_s": self.loss_s,
            "loss_percent": self.loss_percent,
            "sum_of_losses_alone_s": self.sum_alone_s,
            "most_exposed_s": dict(self.most_exposed_s),
        }


@dataclass(frozen=True, eq=False)
class _Seated:
    """A mesh on a cluster."""

    mesh: Mesh
    cluster: Cluster


@dataclass(frozen=True, eq=False)
class _Family:
    """Groups (count, size) of mesh ranks; of a pipeline also its messages, boundary by boundary, (count, 2) each."""

    name: str
    groups: Ints
    boundaries: tuple[Ints, ...] = ()

    def prices(self, at: _Seated) -> list[Price]:
        """What each group's cost depends on, beside its own shapes."""
        if self.boundaries:
            spans = [family_spans(at.cluster, at.mesh.physical(one), pattern="chain") for one in self.boundaries]
        else:
            spans = [family_spans(at.cluster, at.mesh.physical(self.groups))]
        speeds = at.cluster.gpu_speed[at.mesh.physical(self.groups)].min(axis=1).tolist()
        return [(row, speed) for row, speed in zip(zip(*spans, strict=True), speeds, strict=True)]

    def passing(self, at: _Seated) -> tuple[Passing, ...]:
        """All groups on the links of a cluster; messages both ways."""
        if not self.boundaries:
            return (passing(at.cluster, at.mesh.physical(self.groups)),)
        ways = (pairs[:, ::way] for pairs in self.boundaries for way in (1, -1))
        return tuple(passing(at.cluster, at.mesh.physical(pairs), ring=False) for pairs in ways)


def moved(mesh: Mesh, cluster: Cluster, to: Cluster) -> Mesh:
    """The mesh with its ranks on the same GPUs of another cluster; without a placement, on the first ones there."""
    if mesh.placement is None:
        return mesh
    number = {key: place for place, key in enumerate(to.gpus)}
    return replace(mesh, placement=tuple(number[cluster.gpus[gpu]] for gpu in mesh.placement))


def defects_of(job: Job, clean: Cluster) -> tuple[Defect, ...]:
    """Every defect of a job's cluster with the groups that it touches; `clean` is the cluster without them."""
    views = family_views(job, clean)
    return tuple(Defect(loss.part, loss.words, loss.left, _touched(loss, views)) for loss in defects_in(job.cluster))


def defects_in(cluster: Cluster) -> tuple[Loss, ...]:
    """What is wrong with a cluster; nodes that are left out on purpose are not."""
    return tuple(loss for loss in cluster.losses if loss.change.kind != "absent_node")


def family_views(job: Job, clean: Cluster) -> "tuple[FamilyView, ...]":
    """The families of a job's groups on its cluster and on the clean one."""
    here, there = _Seated(job.mesh, job.cluster), _Seated(moved(job.mesh, job.cluster, clean), clean)
    return tuple(FamilyView(family, here, there) for family in _families(job))


def _families(job: Job) -> list[_Family]:
    """The families that have groups of more than one rank."""
    mesh, schedule = job.mesh, job.recipe.schedule
    lines = mesh.groups("pp")
    around = job.chunks > 1 and not meets_itself(schedule)  # the last stage sends on to the first
    ends = range(mesh.pp if around else mesh.pp - 1)
    found = [
        _Family("tp", mesh.groups("tp")),
        _Family("cp", mesh.groups("cp")),
        _Family("dp", gradient_groups(mesh, schedule)),
        _Family("pp", lines, tuple(lines[:, [stage, (stage + 1) % mesh.pp]] for stage in ends)),
    ]
    if mesh.has_expert_mesh:
        found.append(_Family("ep", mesh.expert_groups("ep")))
    return [family for family in found if family.groups.shape[1] > 1]


class FamilyView:
    """A family on the cluster as it is and on the clean one; what a defect does not ask for is not worked out."""

    def __init__(self, family: _Family, here: _Seated, there: _Seated) -> None:
        self.family, self.here, self.there = family, here, there
        self._laid: dict[bool, tuple[Passing, ...]] = {}
        prices = zip(family.prices(here), family.prices(there), strict=True)
        self.changed: Bools = np.array([now != before for now, before in prices], dtype=np.bool_)

    def using(self, ends: Sequence[str]) -> Bools:
        """Groups that use a part (a key, or both ends of a link) of the cluster as it is."""
        return _any(np.stack([one.part(*ends) for one in self._passing(clean=False)], axis=1))

    def diverted(self, ends: Sequence[str]) -> Bools:
        """Groups that used a part on the clean cluster, and those that share the links which these use in its place."""
        found = []
        for before, now in zip(self._passing(clean=True), self._passing(clean=False), strict=True):
            used = before.part(*ends)
            found.append(used | now.users(now.links_of(used) - before.links_of(used)))
        return _any(np.stack(found, axis=1))

    def _passing(self, *, clean: bool) -> tuple[Passing, ...]:
        if clean not in self._laid:
            self._laid[clean] = self.family.passing(self.there if clean else self.here)
        return self._laid[clean]

    def with_gpu(self, key: str) -> Bools:
        """Groups of which a rank is on a GPU."""
        gpus = self.here.cluster.gpus
        number = gpus.index(key) if key in gpus else -1
        return _any(self.here.mesh.physical(self.family.groups) == number)

    def moved_by(self, key: str) -> Bools:
        """Groups of which a rank went on to a later GPU because one is dead; ranks that were placed never do."""
        gpus = self.there.cluster.gpus
        if self.here.mesh.placement is not None or key not in gpus:  # or its node is left out
            return np.zeros(len(self.family.groups), dtype=np.bool_)
        return _any(self.there.mesh.physical(self.family.groups) >= gpus.index(key))


def _any(found: Bools) -> Bools:
    """Groups (rows) with any hit."""
    return np.asarray(found.any(axis=1), dtype=np.bool_)


def _touched(loss: Loss, views: Sequence[FamilyView]) -> tuple[TouchedFamily, ...]:
    found = []
    for view in views:
        touched = uses(loss, view)
        if touched.any():
            first = view.family.groups[int(np.argmax(touched))].tolist()
            counts = (len(touched), int(touched.sum()), int((touched & view.changed).sum()))
            found.append(TouchedFamily(view.family.name, *counts, tuple(first[:SHOWN_RANKS])))
    return tuple(found)


def uses(loss: Loss, view: FamilyView) -> Bools:
    """Groups of a family that the part of a loss touches, shape (count,)."""
    change = loss.change
    if change.kind == "slow_gpu":
        return view.with_gpu(change.part)
    if change.kind == "dead_gpu":
        return view.moved_by(change.part)
    ends = [key for key in (change.part, change.other) if key]
    return view.diverted(ends) if change.kind == "missing_cable" else view.using(ends)
