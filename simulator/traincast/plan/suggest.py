"""Axes and their order from the tiers of a cluster, with a reason for each."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from traincast.analytic import evaluate
from traincast.errors import ShapeError, UserError
from traincast.forecast import divisors, memory_of
from traincast.lower import Job, lower
from traincast.mesh import Mesh, ShapeRequest, balanced_layers, check_shape
from traincast.plan.loads import job_loads
from traincast.plan.tiers import ClusterTier, cluster_tiers
from traincast.topology import Cluster
from traincast.topology.loads import KINDS, FamilyTraffic, LinkLoads, link_loads
from traincast.units import format_bandwidth, format_size, format_time

NEAR: Final = 0.75
"""Share of the best rate between GPUs that a tier must have for tensor parallelism to use it."""
_UP: Final = ("nic out", "leaf up", "block up")
_TIE: Final = 0.02
_TELLING: Final = 0.001
"""Shares by which busiest links and forecasts must differ to decide."""


@dataclass(frozen=True)
class Ask:
    """What a suggestion is for: `gpus` of a cluster, a job where a model is known, and sizes that are fixed."""

    cluster: Cluster
    gpus: int
    job: Job | None = None
    fixed: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Suggestion:
    """The mesh that is proposed, a reason for each choice, and the forecast of a step where a model is known [s].

    `present_step_time_s` is that of the job's own mesh.
    """

    mesh: Mesh
    reasons: tuple[tuple[str, str], ...]
    tiers: tuple[ClusterTier, ...]
    step_time_s: float | None = None
    present_step_time_s: float | None = None


@dataclass(frozen=True)
class _Sizes:
    tp: int
    pp: int
    why_tp: str
    why_pp: str


def suggest(ask: Ask) -> Suggestion:
    """Proposes sizes and order: TP within the fastest tier, then CP, EP, and DP or PP outermost.

    TP and PP together are as small as memory allows (SC21 §5, takeaways 1 and 2), TP first. Of DP and PP that one goes
    outermost that asks less of the upper tiers. Raises ShapeError where the fixed sizes leave no shape.
    """
    tiers = cluster_tiers(ask.cluster)
    known = ask.job.mesh if ask.job else Mesh()
    cp, ep = (ask.fixed.get(axis, getattr(known, axis)) for axis in ("cp", "ep"))
    etp = known.etp if ep == known.ep else 1
    domain = _tensor_tier(tiers)
    sizes = _sizes(ask, cp, domain)
    dp = ask.gpus // (sizes.tp * cp * sizes.pp)
    mesh = Mesh(tp=sizes.tp, cp=cp, pp=sizes.pp, dp=dp, ep=ep, etp=etp)
    reasons = [("tp", sizes.why_tp)]
    if cp > 1:
        reasons.append(("cp", f"cp {cp} next to tp: each layer passes keys and values round its ranks"))
    if ep > 1:
        reasons.append(("ep", f"ep {ep} next: each layer exchanges tokens over its ranks"))
    reasons += [("pp", sizes.why_pp), ("dp", f"dp {dp}: what tp {sizes.tp}, cp {cp} and pp {sizes.pp} leave")]
    order, why = _order(ask, mesh)
    mesh = replace(mesh, order=order)
    reasons.append(("order", why))
    if ask.job is None:
        return Suggestion(mesh, tuple(reasons), tiers)
    own = ask.job.mesh.world == ask.gpus
    return Suggestion(
        mesh=mesh,
        reasons=tuple(reasons),
        tiers=tiers,
        step_time_s=_step_time_s(_with_mesh(ask.job, mesh)),
        present_step_time_s=_step_time_s(ask.job) if own else None,
    )


def _tensor_tier(tiers: tuple[ClusterTier, ...]) -> ClusterTier | None:
    """The largest tier inside an NVLink domain or node that is nearly as fast as the fastest."""
    inside = [tier for tier in tiers if tier.name not in ("leaf", "pod", "cluster")]
    best = max((tier.bytes_per_s for tier in inside), default=0.0)
    near = [tier for tier in inside if tier.bytes_per_s >= NEAR * best]
    return max(near, key=lambda tier: tier.gpus, default=None)


def _sizes(ask: Ask, cp: int, domain: ClusterTier | None) -> _Sizes:
    """TP and PP: as fixed, else the fewest ranks a model copy that fit; without a model TP fills the domain."""
    reach = domain.gpus if domain else 1
    fits = [
        (tp, pp)
        for tp in ([ask.fixed["tp"]] if "tp" in ask.fixed else divisors(reach))
        for pp in ([ask.fixed["pp"]] if "pp" in ask.fixed else divisors(ask.gpus))
        if ask.gpus % (tp * cp * pp) == 0
        and ask.fixed.get("dp", ask.gpus // (tp * cp * pp)) == ask.gpus // (tp * cp * pp)
    ]
    if not fits:
        fixed = ", ".join(f"{axis} {size}" for axis, size in ask.fixed.items())
        raise ShapeError(f"no shape of {ask.gpus} GPUs has {fixed or 'these sizes'}", fix="fix fewer sizes")
    where = f"stays on the {domain.name} of {reach} GPUs" if domain and reach > 1 else "has no fast tier to use"
    rate = f" ({format_bandwidth(domain.bytes_per_s)} a GPU)" if domain and reach > 1 else ""
    if ask.job is None:
        tp, pp = max(fits, key=lambda one: ("pp" in ask.fixed or one[1] == 1, _power_of_two(one[0]), one[0]))
        why = f"pp {pp}: {'as asked' if 'pp' in ask.fixed else 'no model is named that would have to be split'}"
        return _Sizes(tp, pp, f"tp {tp} {where}{rate}", why)
    return _fitting(ask.job, ask.gpus, cp, fits, f"{where}{rate}")


def _power_of_two(number: int) -> bool:
    return number & (number - 1) == 0


def _fitting(job: Job, gpus: int, cp: int, shapes: list[tuple[int, int]], where: str) -> _Sizes:
    """The legal shape with the fewest ranks a model copy that fits into memory, of equal ones the largest TP.

    Stages are uneven only where no even ones fit.
    """
    legal = [one for one in shapes if not any(_refusals(job, gpus, cp, one))]
    if not legal:
        reason = next(_refusals(job, gpus, cp, shapes[0]), "")
        raise ShapeError(f"no shape of {gpus} GPUs suits {job.model.name}: {reason}", fix="change GPUs or the batch")
    legal.sort(key=lambda one: (job.model.layers % one[1] > 0, one[0] * one[1], -one[0]))
    for tp, pp in legal:
        memory = memory_of(_with_mesh(job, Mesh(tp=tp, cp=cp, pp=pp, dp=gpus // (tp * cp * pp))))
        if memory.verdict == "fits":
            needs = f"{format_size(memory.worst.total_bytes)} of {format_size(memory.limit_bytes)}"
            why = f"pp {pp}: tp {tp} and pp {pp} are the fewest ranks that hold {job.model.name} ({needs})"
            return _Sizes(tp, pp, f"tp {tp} {where}", why)
    tp, pp = max(legal, key=lambda one: (one[0] * one[1], one[0]))
    return _Sizes(tp, pp, f"tp {tp} {where}", f"pp {pp}: the most that divides, yet {job.model.name} does not fit")


def _refusals(job: Job, gpus: int, cp: int, shape: tuple[int, int]) -> Iterator[str]:
    """What forbids a shape; fewer microbatches than stages count, too."""
    model, recipe, (tp, pp) = job.model, job.recipe, shape
    if pp > model.layers:
        yield f"{model.layers} layers are fewer than pp {pp}"
    request = ShapeRequest(
        tp=tp,
        cp=cp,
        pp=pp,
        world=gpus,
        layers=model.layers,
        heads=model.heads,
        kv_heads=model.kv_heads,
        ffn_hidden=model.ffn_hidden,
        global_batch=recipe.global_batch,
        microbatch=recipe.microbatch,
        sequence=recipe.sequence,
        sequence_parallel=recipe.sequence_parallel,
        uneven=True,
    )
    for found in check_shape(request):
        if found.severity == "error" or "microbatches are fewer" in found.message:
            yield str(found)


def _with_mesh(job: Job, mesh: Mesh) -> Job:
    """The job on another mesh: even stages where that can be, the plain schedule, no placement."""
    uneven = job.model.layers % mesh.pp and job.model.layers >= mesh.pp
    layers = balanced_layers(job.model.layers, mesh.pp) if uneven else None
    recipe = replace(job.recipe, vpp=1, stage_layers=layers, schedule="none" if mesh.pp == 1 else "1f1b")
    if (mesh.tp, mesh.pp, mesh.dp, mesh.cp) == (job.mesh.tp, job.mesh.pp, job.mesh.dp, job.mesh.cp):
        recipe = job.recipe
    return replace(job, mesh=mesh, recipe=recipe)


def _step_time_s(job: Job) -> float | None:
    """The forecast of a step; None where the job cannot be lowered."""
    try:
        return evaluate(lower(job).program).step_time_s
    except UserError:
        return None


def _order(ask: Ask, mesh: Mesh) -> tuple[str, str]:
    """DP or PP outermost: by the forecast where a model is known and it tells, else by what the upper tiers bear."""
    inner = "tp-cp-ep"
    if mesh.dp == 1 or mesh.pp == 1:
        rest = "dp" if mesh.pp == 1 else "pp"
        return f"{inner}-dp-pp", f"tp innermost, {rest} outside it"
    if mesh.has_expert_mesh:
        return f"{inner}-dp-pp", "pp outermost: the expert mesh shares its stages with the dense one only so"
    orders = {"pp": f"{inner}-dp-pp", "dp": f"{inner}-pp-dp"}
    meshes = {outer: replace(mesh, order=order) for outer, order in orders.items()}
    if ask.job is not None:
        jobs = {outer: _with_mesh(ask.job, one) for outer, one in meshes.items()}
        times = {outer: _step_time_s(one) or math.inf for outer, one in jobs.items()}
        fast, slow = sorted(times, key=times.__getitem__)
        if times[slow] > (1.0 + _TELLING) * times[fast]:
            more = 100.0 * (times[slow] / times[fast] - 1.0)
            told = f"a step takes {format_time(times[fast])}, {more:.2g} % more with {slow}"
            return orders[fast], f"{fast} outermost: {told}"
        by_outer = {outer: _upper(job_loads(one)) for outer, one in jobs.items()}
    else:
        by_outer = {outer: _upper(_counts(ask.cluster, one)) for outer, one in meshes.items()}
    if not any(load.total for load in by_outer.values()):
        return f"{inner}-dp-pp", "nothing leaves the NVLink domain, so dp and pp may stand either way"
    slow, fast = sorted(by_outer, key=lambda outer: by_outer[outer].seconds, reverse=True)
    tie = by_outer[slow].seconds <= (1.0 + _TIE) * by_outer[fast].seconds
    if tie:
        slow, fast = sorted(by_outer, key=lambda outer: by_outer[outer].top, reverse=True)
    return orders[fast], _why(by_outer, fast, slow, tie, ask.job is not None)


@dataclass(frozen=True)
class _Upper:
    """Least time of the busiest link from the NICs upwards, bytes on the highest kind of links in use, and of all."""

    seconds: float
    top: float
    total: float
    kind: str
    top_kind: str


def _upper(loads: LinkLoads) -> _Upper:
    kinds, seconds, carried = loads.kinds(), loads.seconds, loads.bytes.sum(axis=0)
    names = list(KINDS)
    found = {name: kinds == names.index(name) for name in _UP}
    used = [name for name, own in found.items() if carried[own].any()]
    if not used:
        return _Upper(0.0, 0.0, 0.0, "", "")
    worst = max(used, key=lambda name: float(seconds[found[name]].max()))
    total = float(sum(carried[found[name]].sum() for name in used))
    top = float(carried[found[used[-1]]].sum())
    return _Upper(float(seconds[found[worst]].max()), top, total, KINDS[worst], KINDS[used[-1]])


def _counts(cluster: Cluster, mesh: Mesh) -> LinkLoads:
    """One byte for each hop of a gradient ring and each message between stages: counts instead of bytes."""
    lines = mesh.groups("pp")
    pairs = np.stack([lines[:, :-1].ravel(), lines[:, 1:].ravel()], axis=1)
    rings = FamilyTraffic("dp", mesh.physical(mesh.groups("dp", "cp")), 1.0)
    return link_loads(cluster, [rings, FamilyTraffic("pp", mesh.physical(pairs), 1.0, ring=False)])


def _why(by_outer: Mapping[str, _Upper], fast: str, slow: str, tie: bool, weighed: bool) -> str:
    one, other = by_outer[fast], by_outer[slow]
    if not weighed:
        flows = f"{one.top:.0f} flows pass the links {one.top_kind} with {fast} outermost, {other.top:.0f} with {slow}"
        return f"{fast} outermost: {flows}"
    if tie and one.top == other.top and one.top_kind == other.top_kind:
        return f"{fast} outermost: the upper tiers bear the same either way"
    if tie:
        return (
            f"{fast} outermost: {format_size(one.top)} a step pass the links {one.top_kind}, "
            f"{format_size(other.top)} {'' if other.top_kind == one.top_kind else f'{other.top_kind} '}with {slow}"
        )
    busiest = f"the busiest link ({one.kind}) needs {format_time(one.seconds)} a step"
    return f"{fast} outermost: {busiest}, with {slow} {format_time(other.seconds)} ({other.kind})"
