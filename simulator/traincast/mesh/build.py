"""From a request to a mesh, or to all the reasons why not."""

from traincast.mesh.gridchecks import (
    AXES,
    expert_size_problems,
    order_problems,
    placement_problems,
    size_problems,
    stage_problems,
    too_many_ranks,
)
from traincast.mesh.limits import MOST_RANKS
from traincast.mesh.mesh import Mesh
from traincast.mesh.problems import Problem, refuse
from traincast.mesh.request import ShapeRequest
from traincast.mesh.shapechecks import batch_problems, model_problems, world_problems


def check_shape(request: ShapeRequest) -> tuple[Problem, ...]:
    """All that forbids the shape (errors) or deserves a look (warnings), with two numbers and a fix each."""
    sizes = {axis: getattr(request, axis) for axis in AXES}
    sizes |= {
        "dp": 1 if request.dp is None else request.dp,
        "etp": 1 if request.etp is None else request.etp,
    }
    counted = {"world": request.world, "global batch": request.global_batch, "sequence": request.sequence}
    counted |= {"layers": request.layers, "heads": request.heads, "kv_heads": request.kv_heads}
    counted |= {"microbatch": request.microbatch, "vpp": request.vpp, "ffn_hidden": request.ffn_hidden}
    bad_sizes = size_problems(sizes | {name: size for name, size in counted.items() if size is not None})
    if bad_sizes:
        return bad_sizes  # everything else divides by these
    dp, world = request.dp_or_left, request.ranks
    if world is not None and world > MOST_RANKS:
        return (too_many_ranks(world),)
    sizes["dp"] = dp or 1
    found = [*world_problems(request), *order_problems(sizes, request.order)]
    if world is not None:
        expert = expert_size_problems(sizes, world, defaulted=("etp",) if request.etp is None else ())
        if not (found or expert):
            found += stage_problems(sizes, request.order)
        found += [*expert, *placement_problems(request.placement, world)]
    return (*found, *model_problems(request), *(() if dp is None else batch_problems(request, dp)))


def build_mesh(request: ShapeRequest) -> Mesh:
    """The mesh of a request; raises one ShapeError with every refusal, a line each. Warnings pass."""
    refuse(check_shape(request))
    dp = request.dp_or_left
    assert dp is not None
    return Mesh(
        tp=request.tp,
        cp=request.cp,
        pp=request.pp,
        dp=dp,
        ep=request.ep,
        etp=1 if request.etp is None else request.etp,
        order=request.order,
        placement=request.placement,
    )


def shape_warnings(request: ShapeRequest) -> tuple[str, ...]:
    """What passes but deserves a line in the report."""
    return tuple(str(found) for found in check_shape(request) if found.severity == "warning")
