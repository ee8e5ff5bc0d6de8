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
from traincast.lower.spans import rank_spans
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

    With a model TP and PP are those of the fastest forecast among the shapes that fit into memory, by the recurrence
    with static sharing; the scenario's own mesh is one of them. Of DP and PP that one goes outermost that asks less of
    the upper tiers. Raises ShapeError where the fixed sizes leave no shape,
    TopologyError where no link joins the GPUs.
    """
    tiers = cluster_tiers(ask.cluster)
    cp, ep, _ = _inner(ask)
    domain = _tensor_tier(tiers)
    sizes = _sizes(ask, cp, domain)
    mesh = _mesh(ask, sizes.tp, sizes.pp)
    reasons = [("tp", sizes.why_tp)]
    if cp > 1:
        reasons.append(("cp", f"cp {cp} next to tp: each layer passes keys and values round its ranks"))
    if ep > 1:
        reasons.append(("ep", f"ep {ep} next: each layer exchanges tokens over its ranks"))
    reasons += [("pp", sizes.why_pp), ("dp", f"dp {mesh.dp}: what tp {sizes.tp}, cp {cp} and pp {sizes.pp} leave")]
    order, why = _order(ask, mesh)
    mesh = replace(mesh, order=order)
    reasons.append(("order", why))
    rank_spans(mesh, ask.cluster)  # refuses groups that no link joins
    if ask.job is None:
        return Suggestion(mesh, tuple(reasons), tiers)
    step_s = _step_time_s(_with_mesh(ask.job, mesh))
    own_s = _step_time_s(ask.job) if ask.job.mesh.world == ask.gpus else None
    found = Suggestion(mesh, tuple(reasons), tiers, step_s, own_s)
    return _own(ask.job, found) if own_s and _may_be_own(ask) else found


def _may_be_own(ask: Ask) -> bool:
    """Whether the scenario's own mesh has the sizes that are fixed."""
    return ask.job is not None and all(getattr(ask.job.mesh, axis) == size for axis, size in ask.fixed.items())


def _own(job: Job, found: Suggestion) -> Suggestion:
    """The scenario's own mesh where it fits and is faster than what was found, such as by its order or placement."""
    own_s, step_s = found.present_step_time_s or math.inf, found.step_time_s or math.inf
    if own_s * (1.0 + _TELLING) >= step_s or memory_of(job).verdict != "fits":
        return found
    other, placed = found.mesh, " with its placement" if job.mesh.placement else ""
    slower = f"{_more(step_s, own_s)} with" if step_s < math.inf else "faster than"
    shape = f"tp {other.tp}, pp {other.pp}, dp {other.dp}, order {other.order}"
    why = f"the scenario's own{placed} is the fastest: a step takes {format_time(own_s)}, {slower} {shape}"
    return replace(found, mesh=job.mesh, reasons=(("mesh", why),), step_time_s=own_s)


def _inner(ask: Ask) -> tuple[int, int, int]:
    """CP, EP and ETP: as fixed, else the scenario's."""
    known = ask.job.mesh if ask.job else Mesh()
    cp, ep = (ask.fixed.get(axis, getattr(known, axis)) for axis in ("cp", "ep"))
    return cp, ep, known.etp if ep == known.ep else 1


def _mesh(ask: Ask, tp: int, pp: int) -> Mesh:
    """The mesh of a shape, in the usual order; DP is what is left. Raises ShapeError where EP does not divide it."""
    cp, ep, etp = _inner(ask)
    return Mesh(tp=tp, cp=cp, pp=pp, dp=ask.gpus // (tp * cp * pp), ep=ep, etp=etp)


def _tensor_tier(tiers: tuple[ClusterTier, ...]) -> ClusterTier | None:
    """The largest tier inside an NVLink domain or node that is nearly as fast as the fastest."""
    inside = [tier for tier in tiers if tier.name not in ("leaf", "pod", "cluster")]
    best = max((tier.bytes_per_s for tier in inside), default=0.0)
    near = [tier for tier in inside if tier.bytes_per_s >= NEAR * best]
    return max(near, key=lambda tier: tier.gpus, default=None)


def _sizes(ask: Ask, cp: int, domain: ClusterTier | None) -> _Sizes:
    """TP and PP: as fixed, else the fastest that fit; without a model TP fills the domain."""
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
    return _fitting(ask, ask.job, fits, f"{where}{rate}")


def _power_of_two(number: int) -> bool:
    return number & (number - 1) == 0


def _fitting(ask: Ask, job: Job, shapes: list[tuple[int, int]], where: str) -> _Sizes:
    """The legal shape that fits into memory and has the fastest forecast; of equal ones the fewest ranks a model copy.

    Stages are uneven only where no even ones fit.
    """
    legal = [one for one in shapes if not any(_refusals(ask, job, one))]
    if not legal:
        reason = next(_refusals(ask, job, shapes[0]), "")
        message = f"no shape of {ask.gpus} GPUs suits {job.model.name}: {reason}"
        raise ShapeError(message, fix="change GPUs or the batch")
    legal.sort(key=lambda one: (one[0] * one[1], -one[0]))
    jobs = {one: _with_mesh(job, _mesh(ask, *one)) for one in legal}
    own = next((shape for shape, one in jobs.items() if one.recipe is job.recipe), None)
    even = [shape for shape in legal if job.model.layers % shape[1] == 0 or shape == own]
    fits = _that_fit(jobs, even) or _that_fit(jobs, [shape for shape in legal if shape not in even])
    if not fits:
        tp, pp = max(legal, key=lambda one: (one[0] * one[1], one[0]))
        return _Sizes(tp, pp, f"tp {tp} {where}", f"pp {pp}: the most that divides, yet {job.model.name} does not fit")
    times = {shape: _step_time_s(jobs[shape]) or math.inf for shape in fits}
    tp, pp = min(times, key=times.__getitem__)
    evenly = len(even) < len(legal) and all(job.model.layers % shape[1] == 0 for shape in fits)
    which = f"{_fastest(times, own)}{' of even stages' if evenly else ''}"
    why = f"{which} that hold{'s' if len(fits) == 1 else ''} {job.model.name} ({fits[tp, pp]})"
    if own is not None and own not in fits:
        why += "; the scenario's own does not fit"
    return _Sizes(tp, pp, f"tp {tp} {where}", f"pp {pp}: {why}{_lead(times)}")


def _that_fit(jobs: Mapping[tuple[int, int], Job], shapes: list[tuple[int, int]]) -> dict[tuple[int, int], str]:
    """The shapes that fit into memory, each with what it needs."""
    found = {}
    for shape in shapes:
        memory = memory_of(jobs[shape])
        if memory.verdict == "fits":
            found[shape] = f"{format_size(memory.worst.total_bytes)} of {format_size(memory.limit_bytes)}"
    return found


def _fastest(times: Mapping[tuple[int, int], float], own: tuple[int, int] | None) -> str:
    """The fastest shape in words, as one of how many; the scenario's own is called so."""
    best = min(times, key=times.__getitem__)
    whose = "the scenario's own " if best == own else ""
    which = "only shape" if len(times) == 1 else f"fastest of {len(times)} shapes"
    return f"{whose}tp {best[0]} and pp {best[1]} are the {which}"


def _lead(times: Mapping[tuple[int, int], float]) -> str:
    """What a step takes with the fastest shape, and how much more with the next."""
    ranked = sorted(times, key=times.__getitem__)
    if times[ranked[0]] == math.inf:
        return ""
    told = f"; a step takes {format_time(times[ranked[0]])}"
    if len(ranked) == 1 or times[ranked[1]] == math.inf:
        return told
    tp, pp = ranked[1]
    return f"{told}, {_more(times[ranked[1]], times[ranked[0]])} with tp {tp} and pp {pp}"


def _more(slow_s: float, fast_s: float) -> str:
    """How much longer the slower of two takes, such as "2.8 % more"."""
    percent = 100.0 * (slow_s / fast_s - 1.0)
    return f"{percent:.0f} % more" if percent >= 10.0 else f"{percent:.2g} % more"


def _refusals(ask: Ask, job: Job, shape: tuple[int, int]) -> Iterator[str]:
    """What forbids a shape; fewer microbatches than stages count, too."""
    model, recipe, (tp, pp) = job.model, job.recipe, shape
    if pp > model.layers:
        yield f"{model.layers} layers are fewer than pp {pp}"
    try:
        _mesh(ask, tp, pp)
    except ShapeError as error:
        yield error.message
    request = ShapeRequest(
        tp=tp,
        cp=_inner(ask)[0],
        pp=pp,
        world=ask.gpus,
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
            told = f"a step takes {format_time(times[fast])}, {_more(times[slow], times[fast])} with {slow}"
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
