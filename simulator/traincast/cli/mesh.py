"""`traincast mesh`: ranks, groups, placement and communicators of a parallel shape, on a cluster if one is named."""

import re
from typing import TYPE_CHECKING, Annotated

import typer

from traincast.cli.output import FormatOption, OutputOption, remark
from traincast.cli.predict import SetOption, parse_overrides
from traincast.errors import ShapeError, UsageError

if TYPE_CHECKING:
    from traincast.cli.mesh_cluster import Subject
    from traincast.mesh import Mesh, ShapeRequest, SubMesh
    from traincast.mesh.holdings import ModelFacts

# what says how to show a mesh, not which mesh it is
_BESIDE_THE_SHAPE = ("cluster", "scenario", "overrides", "top", "everything", "fmt", "output")


def mesh(
    ctx: typer.Context,
    tp: Annotated[int, typer.Option(help="Tensor-parallel ranks.")] = 1,
    cp: Annotated[int, typer.Option(help="Context-parallel ranks.")] = 1,
    pp: Annotated[int, typer.Option(help="Pipeline stages.")] = 1,
    dp: Annotated[int | None, typer.Option(help="Data-parallel ranks; by default what the world leaves.")] = None,
    ep: Annotated[int, typer.Option(help="Expert-parallel ranks.")] = 1,
    etp: Annotated[int | None, typer.Option(help="Tensor-parallel ranks of experts; by default 1.")] = None,
    world: Annotated[int | None, typer.Option(help="Number of ranks, to check or to divide.")] = None,
    order: Annotated[
        str, typer.Option(help="Axes from the fastest to the slowest; axes of size 1 may be left out.")
    ] = "tp-cp-ep-dp-pp",
    gpus_per_node: Annotated[int, typer.Option(min=1, help="GPUs per node, where no cluster is named.")] = 8,
    placement: Annotated[
        str | None,
        typer.Option(metavar="GPUS", help="GPU of each rank, such as 8-15,0-7, or a rank file; by default its number."),
    ] = None,
    vpp: Annotated[int, typer.Option(help="Chunks (virtual stages) a rank.")] = 1,
    schedule: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Pipeline schedule, such as zb-v: which part of the model, and so which groups, where."
        ),
    ] = None,
    layers: Annotated[int | None, typer.Option(help="Transformer layers.")] = None,
    stage_layers: Annotated[
        str | None, typer.Option(metavar="N,N,...", help="Layers of each chunk in pipeline order.")
    ] = None,
    uneven: Annotated[bool, typer.Option("--uneven", help="Balance layers that do not divide.")] = False,
    hidden: Annotated[int | None, typer.Option(min=1, help="Hidden size.")] = None,
    heads: Annotated[int | None, typer.Option(help="Attention heads.")] = None,
    kv_heads: Annotated[int | None, typer.Option(help="Key and value heads.")] = None,
    ffn_hidden: Annotated[int | None, typer.Option(help="Inner size of the MLP (of an expert, with experts).")] = None,
    vocab: Annotated[int | None, typer.Option(min=1, help="Vocabulary, padded.")] = None,
    experts: Annotated[int | None, typer.Option(min=0, help="Routed experts.")] = None,
    global_batch: Annotated[int | None, typer.Option(help="Sequences a step.")] = None,
    microbatch: Annotated[int, typer.Option(help="Sequences a microbatch.")] = 1,
    sequence: Annotated[int | None, typer.Option(help="Tokens a sequence.")] = None,
    fsdp: Annotated[
        str | None, typer.Option(metavar="AXES", help="FSDP's data axes: dp, dp-cp or edp ('mesh': unnamed).")
    ] = None,
    hsdp: Annotated[str | None, typer.Option(metavar="RxS", help="HSDP's replicas and shards, such as 2x4.")] = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE", help="Lay the groups on this cluster: what they cross, with a scenario also the load."
        ),
    ] = None,
    scenario: Annotated[
        str | None,
        typer.Option(
            metavar="SCENARIO", help="Take shape, model, recipe (and cluster) from a scenario, with its bytes."
        ),
    ] = None,
    overrides: SetOption = None,
    top: Annotated[int, typer.Option(min=1, metavar="K", help="How many of the busiest links to show.")] = 10,
    everything: Annotated[bool, typer.Option("--all", help="Cut nothing short.")] = False,
    fmt: FormatOption = None,
    output: OutputOption = None,
) -> None:
    """Ranks, groups, placement and communicators of a parallel shape; with --cluster also what its groups cross."""
    if ctx.invoked_subcommand is not None:
        return
    from dataclasses import replace

    from traincast.cli.mesh_cluster import Shown, of_scenario, show
    from traincast.cli.mesh_schedule import scheduled
    from traincast.mesh import ShapeRequest
    from traincast.mesh.holdings import ModelFacts

    shown = Shown(top, everything, fmt, output)
    if scenario is not None:
        _refuse_shape_options(ctx)
        show(of_scenario(scenario, parse_overrides(overrides or ()), cluster), shown)
        return
    if overrides:
        raise UsageError("--set changes keys of a scenario", where="--set", fix="name one with --scenario")
    request = ShapeRequest(
        tp=tp,
        cp=cp,
        pp=pp,
        dp=dp,
        ep=ep,
        etp=etp,
        order=order,
        world=world,
        vpp=vpp,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        ffn_hidden=ffn_hidden,
        experts=experts,
        global_batch=global_batch,
        microbatch=microbatch,
        sequence=sequence,
        stage_layers=None if stage_layers is None else _numbers(stage_layers, "--stage-layers"),
        uneven=uneven,
    )
    if schedule is not None:
        request = scheduled(request, schedule, vpp_stated=_stated(ctx, "vpp"))
    if hidden is not None and heads is not None:
        _refuse_uneven_heads(hidden, heads)
    facts = ModelFacts(
        hidden=hidden, heads=heads, kv_heads=kv_heads, ffn_hidden=ffn_hidden, vocab=vocab, experts=experts or 0
    )
    if placement is not None:
        request = replace(request, placement=_placement(placement, cluster))
    subject = _subject(request, facts, schedule, cluster, gpus_per_node)
    show(_sharded(subject, _sharding(subject.mesh, fsdp, hsdp)), shown)


def _refuse_shape_options(ctx: typer.Context) -> None:
    """With a scenario the shape is the scenario's: options that say another are refused."""
    for name in ctx.params:
        if _stated(ctx, name) and name not in _BESIDE_THE_SHAPE:
            option = f"--{name.replace('_', '-')}"
            raise UsageError(
                f"{option} beside --scenario, which states the shape",
                where=option,
                fix="change it with --set, such as --set parallelism.tp=4",
            )


def _stated(ctx: typer.Context, name: str) -> bool:
    """Whether an option was given."""
    source = ctx.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _refuse_uneven_heads(hidden: int, heads: int) -> None:
    """The mesh command knows no head width but hidden / heads."""
    if heads > 0 and hidden % heads:
        from traincast.mesh.problems import either, near_divisors

        fix = f"--heads {either(near_divisors(hidden, heads))}, or another --hidden"
        raise ShapeError(f"hidden {hidden} is not a multiple of {heads} heads", fix=fix)


def _subject(
    request: "ShapeRequest",
    facts: "ModelFacts",
    schedule: str | None,
    cluster: str | None,
    gpus_per_node: int,
) -> "Subject":
    """The mesh of the options, on the cluster that is named."""
    from dataclasses import replace

    from traincast.cli.mesh_cluster import Subject, on_cluster
    from traincast.cli.mesh_schedule import checked, layers_of_chunks, parts_of_stages
    from traincast.mesh import build_mesh
    from traincast.mesh.describe import Views
    from traincast.plan import wiring_of

    warnings = checked(request)
    built, name = build_mesh(request), schedule or ("1f1b" if request.vpp == 1 else "interleaved")
    wiring, parts = wiring_of(built, name, request.vpp), parts_of_stages(name, built.pp, request.vpp)
    views = Views(
        gpus_per_node=gpus_per_node,
        model=replace(facts, split=layers_of_chunks(request), parts=parts),
        interleaved=wiring.wraps,
        warnings=warnings,
        groups=wiring.groups,
    )
    for line in views.warnings:
        remark(f"warning: {line}")
    subject = Subject(built, views, wiring=wiring)
    return subject if cluster is None else on_cluster(subject, cluster)


def _placement(text: str, cluster: str | None) -> tuple[int, ...]:
    """GPUs in the order written, or those of a rank file; names in it need the cluster."""
    from pathlib import Path

    if not Path(text).is_file():
        return _numbers(text, "--placement")
    from traincast.scenario.placement import Placing, numbers, on_cluster
    from traincast.scenario.rankfile import read_rank_file
    from traincast.scenario.text import Places
    from traincast.topology import load_cluster

    placing = Placing(read_rank_file(Path(text)), (), (), False, Places("--placement"))
    if not placing.needs_cluster:
        return numbers(placing)
    if cluster is None:
        raise UsageError(f"{text} names nodes", where="--placement", fix="name the cluster with --cluster")
    return on_cluster(placing, load_cluster(cluster))


def _sharded(subject: "Subject", sharding: "SubMesh | None") -> "Subject":
    from dataclasses import replace

    return replace(subject, views=replace(subject.views, sharding=sharding))


def _sharding(built: "Mesh", fsdp: str | None, hsdp: str | None) -> "SubMesh | None":
    """The sub-mesh that --fsdp and --hsdp ask for."""
    from traincast.mesh import fsdp_mesh, hsdp_mesh

    if fsdp is None and hsdp is None:
        return None
    axes = None if fsdp in (None, "mesh") else fsdp.split("-")
    option = "--fsdp" if hsdp is None else "--hsdp"
    try:
        if hsdp is None:
            return fsdp_mesh(built, axes)
        sizes = hsdp.lower().split("x")
        if len(sizes) != 2 or not all(size.isdecimal() for size in sizes):
            raise UsageError(f"{hsdp!r} is not replicas x shards", fix="such as 2x4", where="--hsdp")
        return hsdp_mesh(built, int(sizes[0]), int(sizes[1]), axes)
    except ShapeError as error:
        fix = re.sub(r"^(name them: .*)$", r"\1, with --fsdp dp or --fsdp dp-cp", error.fix or "")
        fix = re.sub(r"^replicate (\d+) and shard (\d+)$", r"--hsdp \1x\2", fix)
        raise ShapeError(error.message, where=option, fix=fix) from error


def _numbers(text: str, option: str) -> tuple[int, ...]:
    """The numbers of "8-15,0-7" in the order written."""
    from traincast.mesh.limits import MOST_RANKS

    example = "8-15,0-7" if option == "--placement" else "8,8,7,7"
    numbers: list[int] = []
    for word in text.split(","):
        first, _, last = word.strip().partition("-")
        if not first.isdecimal() or (last and not last.isdecimal()) or int(last or first) < int(first):
            raise UsageError(f"{word!r} is no number and no range", fix=f"such as {example}", where=option)
        if int(last or first) - int(first) >= MOST_RANKS:
            raise UsageError(f"{word!r} lists more than {MOST_RANKS} numbers", fix=f"such as {example}", where=option)
        numbers += range(int(first), int(last or first) + 1)
    return tuple(numbers)
