"""`traincast plan`, `mesh suggest`, `mesh check`: which order and placement to take, and whether two maps agree."""

from typing import Annotated

import typer

from traincast.cli.output import FormatOption, OutputOption, chosen_format, emit, remark, working
from traincast.cli.predict import ScenarioArgument, SetOption, parse_overrides
from traincast.errors import UsageError

_SHOWN_ON_SCREEN = 20
_SHOWN_REFUSALS = 5


def plan(
    scenario: ScenarioArgument,
    orders: Annotated[bool, typer.Option(help="Try every order of the axes of size above 1.")] = True,
    placements: Annotated[
        bool, typer.Option("--placements", help="Also deal the nodes out to leaves and pods, and sort them.")
    ] = False,
    splits: Annotated[
        bool, typer.Option("--splits", help="Also split the layers by the pace of each stage's GPUs.")
    ] = False,
    swaps: Annotated[
        int, typer.Option("--swaps", min=0, metavar="N", help="Then try N swaps of two nodes on the best.")
    ] = 0,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the swaps.")] = 0,
    top: Annotated[int | None, typer.Option("--top", min=1, metavar="K", help="Only the K fastest.")] = None,
    overrides: SetOption = None,
    fmt: FormatOption = None,
    output: OutputOption = None,
) -> None:
    """Forecast a scenario in every order of its axes (and placement), the fastest first, with what limits each."""
    from traincast.forecast import prepare
    from traincast.plan import Wish
    from traincast.plan import plan as search
    from traincast.report.plan_tables import plan_table
    from traincast.scenario import load_scenario
    from traincast.scenario.refusals import refuse_unmodelled

    prepared = prepare(load_scenario(scenario, parse_overrides(overrides or ())))
    refuse_unmodelled(prepared.scenario, prepared.job)
    with working(f"planning {prepared.scenario.name}"):
        found = search(prepared, Wish(orders, placements, splits, swaps, seed))
    remark(f"{len(found.rows)} candidates evaluated, {len(found.refusals)} refused")
    for line in found.refusals[:_SHOWN_REFUSALS]:
        remark(f"refused: {line}")
    shown = top or (_SHOWN_ON_SCREEN if chosen_format(fmt, output) == "table" else None)
    emit(found.as_dict(top), [plan_table(found, shown)], fmt, output)


def suggest(
    cluster: Annotated[
        str | None, typer.Option(metavar="NAME|FILE", help="The cluster; by default the scenario's.")
    ] = None,
    scenario: Annotated[
        str | None, typer.Option(metavar="SCENARIO", help="Model and recipe; without one the tiers alone decide.")
    ] = None,
    gpus: Annotated[int | None, typer.Option(min=1, help="GPUs; by default the scenario's, else all.")] = None,
    tp: Annotated[int | None, typer.Option(min=1, help="Fixed tensor-parallel ranks.")] = None,
    cp: Annotated[int | None, typer.Option(min=1, help="Context-parallel ranks.")] = None,
    ep: Annotated[int | None, typer.Option(min=1, help="Expert-parallel ranks.")] = None,
    pp: Annotated[int | None, typer.Option(min=1, help="Fixed pipeline stages.")] = None,
    dp: Annotated[int | None, typer.Option(min=1, help="Fixed data-parallel ranks.")] = None,
    overrides: SetOption = None,
    fmt: FormatOption = None,
    output: OutputOption = None,
) -> None:
    """Propose axes and their order from the tiers of a cluster, with a reason for each."""
    from traincast.cli.mesh_cluster import scenario_on
    from traincast.forecast import prepare
    from traincast.plan.suggest import Ask
    from traincast.plan.suggest import suggest as propose
    from traincast.report.plan_tables import suggestion_payload, suggestion_tables
    from traincast.topology import load_cluster

    if cluster is None and scenario is None:
        raise UsageError("no cluster", where="--cluster", fix="name a cluster, or a scenario with --scenario")
    sizes = {"tp": tp, "cp": cp, "ep": ep, "pp": pp, "dp": dp}
    fixed = {axis: size for axis, size in sizes.items() if size is not None}
    if scenario is None:
        found = load_cluster(str(cluster), gpus=gpus)
        ask = Ask(found, gpus or len(found.gpus), None, fixed)
    else:
        job = prepare(scenario_on(scenario, parse_overrides(overrides or ()), cluster)).job
        ask = Ask(job.cluster, gpus or job.mesh.world, job, fixed)
        if ask.gpus > len(job.cluster.gpus):
            raise UsageError(
                f"{gpus} GPUs, but the scenario's cluster is cut to {len(job.cluster.gpus)}",
                where="--gpus",
                fix="use fewer, or set the scenario's dp higher with --set",
            )
    with working("weighing tiers"):
        proposal = propose(ask)
    name = ask.cluster.name
    emit(suggestion_payload(proposal, name), suggestion_tables(proposal, name), fmt, output)


MapArgument = Annotated[
    str,
    typer.Argument(
        help="A mesh (tp2-pp4-dp2, with @ORDER), a scenario, JSON or CSV of ranks or groups, or an NCCL log.",
        show_default=False,
    ),
]


def check(
    first: MapArgument,
    second: MapArgument,
    family: Annotated[
        list[str] | None, typer.Option("--family", help="Compare only this family of groups. Repeatable.")
    ] = None,
    fmt: FormatOption = None,
    output: OutputOption = None,
) -> None:
    """Compare two rank maps: which groups agree, the first ranks that differ, what would hang or be mispaired.

    Exit code 0: equal. 1: different.
    """
    from traincast.plan.agree import compare
    from traincast.plan.rankmaps import read_rank_map
    from traincast.report.plan_tables import agreement_tables

    found = compare(read_rank_map(first), read_rank_map(second)).only(family or ())
    if not found.agreed and not found.differences:
        raise UsageError(
            "the two have no family of groups in common", where="mesh check", fix="give both the same axes or families"
        )
    emit(found.as_dict(), agreement_tables(found), fmt, output)
    if not found.equal:
        raise typer.Exit(1)
