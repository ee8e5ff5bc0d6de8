"""`traincast mesh`: ranks, groups, placement and communicators of a parallel shape."""

from typing import TYPE_CHECKING, Annotated

import typer

from traincast.cli.output import FormatOption, OutputOption, chosen_format, emit, remark
from traincast.errors import UsageError

if TYPE_CHECKING:
    from traincast.mesh import Mesh, ShapeRequest, SubMesh


def mesh(
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
    gpus_per_node: Annotated[int, typer.Option(help="GPUs per node.")] = 8,
    placement: Annotated[
        str | None,
        typer.Option(metavar="GPUS", help="GPU of each rank, such as 8-15,0-7; by default its number."),
    ] = None,
    vpp: Annotated[int, typer.Option(help="Chunks (virtual stages) a rank.")] = 1,
    layers: Annotated[int | None, typer.Option(help="Transformer layers.")] = None,
    stage_layers: Annotated[
        str | None, typer.Option(metavar="N,N,...", help="Layers of each chunk in pipeline order.")
    ] = None,
    uneven: Annotated[bool, typer.Option("--uneven", help="Balance layers that do not divide.")] = False,
    hidden: Annotated[int | None, typer.Option(help="Hidden size.")] = None,
    heads: Annotated[int | None, typer.Option(help="Attention heads.")] = None,
    kv_heads: Annotated[int | None, typer.Option(help="Key and value heads.")] = None,
    ffn_hidden: Annotated[int | None, typer.Option(help="Inner size of the MLP (of an expert, with experts).")] = None,
    vocab: Annotated[int | None, typer.Option(help="Vocabulary, padded.")] = None,
    experts: Annotated[int | None, typer.Option(help="Routed experts.")] = None,
    global_batch: Annotated[int | None, typer.Option(help="Sequences a step.")] = None,
    microbatch: Annotated[int, typer.Option(help="Sequences a microbatch.")] = 1,
    sequence: Annotated[int | None, typer.Option(help="Tokens a sequence.")] = None,
    fsdp: Annotated[
        str | None, typer.Option(metavar="AXES", help="FSDP's data axes: dp, dp-cp or edp ('mesh': unnamed).")
    ] = None,
    hsdp: Annotated[str | None, typer.Option(metavar="RxS", help="HSDP's replicas and shards, such as 2x4.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Cut nothing short.")] = False,
    fmt: FormatOption = None,
    output: OutputOption = None,
) -> None:
    """Ranks, groups, placement and communicators of a parallel shape."""
    from traincast.cli.mesh_tables import mesh_tables, ranks_table
    from traincast.mesh import ShapeRequest, build_mesh, shape_warnings
    from traincast.mesh.describe import Views, describe
    from traincast.mesh.holdings import ModelFacts

    request = ShapeRequest(
        tp=tp,
        cp=cp,
        pp=pp,
        dp=dp,
        ep=ep,
        etp=etp,
        order=order,
        placement=None if placement is None else _numbers(placement, "--placement"),
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
    built = build_mesh(request)
    views = Views(
        gpus_per_node=gpus_per_node,
        model=ModelFacts(
            split=_split(request),
            hidden=hidden,
            heads=heads,
            kv_heads=kv_heads,
            ffn_hidden=ffn_hidden,
            vocab=vocab,
            experts=experts or 0,
        ),
        interleaved=vpp > 1,
        sharding=_sharding(built, fsdp, hsdp),
        warnings=shape_warnings(request),
    )
    for line in views.warnings:
        remark(f"warning: {line}")
    form = chosen_format(fmt, output)
    payload = describe(built, views) if form == "json" else {}
    tables = mesh_tables(built, views, everything) if form == "table" else (ranks_table(built, views),)
    emit(payload, tables, form, output)


def _split(request: "ShapeRequest") -> tuple[int, ...] | None:
    """Layers of each chunk: as given, or even, or balanced where that was asked for."""
    from traincast.mesh import balanced_layers, even_layers

    if request.layers is None or request.stage_layers is not None:
        return request.stage_layers
    if request.uneven and request.layers % (request.pp * request.vpp):
        return balanced_layers(request.layers, request.pp, request.vpp, embedding_as_layer=True)
    return even_layers(request.layers, request.pp, request.vpp)


def _sharding(built: "Mesh", fsdp: str | None, hsdp: str | None) -> "SubMesh | None":
    """The sub-mesh that --fsdp and --hsdp ask for."""
    from traincast.mesh import fsdp_mesh, hsdp_mesh

    if fsdp is None and hsdp is None:
        return None
    axes = None if fsdp in (None, "mesh") else fsdp.split("-")
    if hsdp is None:
        return fsdp_mesh(built, axes)
    sizes = hsdp.lower().split("x")
    if len(sizes) != 2 or not all(size.isdecimal() for size in sizes):
        raise UsageError(f"{hsdp!r} is not replicas x shards", fix="such as 2x4", where="--hsdp")
    return hsdp_mesh(built, int(sizes[0]), int(sizes[1]), axes)


def _numbers(text: str, option: str) -> tuple[int, ...]:
    """The numbers of "8-15,0-7" in the order written."""
    numbers: list[int] = []
    for word in text.split(","):
        first, _, last = word.strip().partition("-")
        if not first.isdecimal() or (last and not last.isdecimal()) or int(last or first) < int(first):
            raise UsageError(f"{word!r} is no number and no range", fix="such as 8-15,0-7", where=option)
        numbers += range(int(first), int(last or first) + 1)
    return tuple(numbers)
