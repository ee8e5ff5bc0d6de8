"""From checked sections to a Scenario: defaults, agreement of shape, model and batch, hardware that
exists."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from traincast.catalog import Catalog
from traincast.errors import ScenarioError, ShapeError, UserError, combined
from traincast.mesh import (
    DEFAULT_ORDER,
    Mesh,
    ShapeRequest,
    balanced_layers,
    build_mesh,
    check_shape,
)
from traincast.model import ModelShape
from traincast.model.shape import hidden_per_head
from traincast.recipe import Fp8Scaling, Recipe, TpOverlap
from traincast.scenario import placement
from traincast.scenario.checks import recipe_problems, schedule_errors, shape_problems
from traincast.scenario.cluster import open_cluster
from traincast.scenario.context import check_context, context_fields, splits_blocks
from traincast.scenario.fixes import Trials
from traincast.scenario.idle import idle_keys
from traincast.scenario.reshape import default_p2p
from traincast.scenario.schema import (
    BALANCED,
    BALANCED_WITH_EMBEDDING,
    ClusterSection,
    ModelSection,
    ParallelismSection,
    ScenarioSection,
    TrainingSection,
)
from traincast.scenario.sharded import check_shard_groups, sharding_assumptions, sharding_fields
from traincast.scenario.stack import profile_problems, with_stack_defaults
from traincast.scenario.text import Keys, Places
from traincast.scenario.types import ClusterSpec, Scenario
from traincast.scenario.wording import warning_text
from traincast.schedule import SPLIT, TWO_CHUNKS, chunks_of_model, in_groups


@dataclass(frozen=True)
class Draft:
    """A scenario whose types are right, with what is needed to check the rest."""

    section: ScenarioSection
    cluster_file: str | None
    places: Places
    path: Path
    label: str
    catalog: Catalog


def build(draft: Draft) -> Scenario:
    """The scenario of a draft. Raises one UserError that reports all that clashes, each with place and
    fix."""
    problems, assumptions = list[UserError](), list[str]()
    section = with_stack_defaults(draft.section, assumptions)
    model = _model(draft, problems)
    cluster = _cluster(draft, problems)
    if model is None or cluster is None:
        raise combined(problems)
    seats = _seats(draft, cluster)
    by_seats = seats is not None and section.parallelism.dp is None
    request = _request(section, model, len(seats or ()) if by_seats else _cluster_gpus(cluster), assumptions)
    if seats is not None:
        request = replace(request, placement=_placement(draft, request, seats))
    trials = Trials(
        request,
        section.training.schedule,
        gpus=len(seats or ()) if by_seats else _cluster_gpus(cluster),
        dp_stated=section.parallelism.dp is not None,
        balanced=section.training.stage_layers in (BALANCED, BALANCED_WITH_EMBEDDING),
    )
    problems += shape_problems(trials, draft.places)
    problems += recipe_problems(section, _with_chunks(section), draft.places)
    problems += profile_problems(section.profile, draft.places)
    if not problems:
        problems += schedule_errors(section.training, trials, draft.places)
    if problems:
        raise combined(problems)
    mesh = build_mesh(request)
    recipe = _recipe(section, model, mesh, assumptions)
    check_shard_groups(mesh, recipe, draft.places)
    assumptions += sharding_assumptions(section.training, mesh, recipe)
    assumptions += check_context(model, mesh, recipe, draft.places)
    assumptions += idle_keys(draft.section, mesh, recipe, model.layers)
    if cluster.described:
        cluster = _sized(cluster, mesh, assumptions)
    return Scenario(
        name=section.name or draft.label,
        model=model,
        cluster=cluster,
        mesh=mesh,
        recipe=recipe,
        profile_name=section.profile,
        source=section.source,
        published=_published(section),
        assumptions=(*assumptions, *(warning_text(one) for one in check_shape(request))),
        description=section.description,
        stated=_stated(draft.section),
        places=draft.places,
    )


def _stated(section: ScenarioSection) -> dict[str, Any]:
    """Keys of parallelism and training that the file or an option states, with their values."""
    parts = {"parallelism": section.parallelism, "training": section.training}
    return {
        f"{name}.{key}": getattr(part, key) for name, part in parts.items() for key in sorted(part.model_fields_set)
    }


def _model(draft: Draft, problems: list[UserError]) -> ModelShape | None:
    section = draft.section.model
    if section.gated_mlp and section.ffn_hidden is None:
        where = draft.places.where(("model", "gated_mlp"))
        problems.append(
            ScenarioError("a gated MLP has no usual width", where=where, fix="add ffn_hidden: to the model")
        )
        return None
    try:
        return model_shape(section, draft.section.training.sequence)
    except ShapeError as error:
        keys: Keys = ("model", "kv_heads" if "query heads" in error.message else "heads")
        problems.append(ShapeError(error.message, where=draft.places.where(keys), fix=error.fix))
        return None


def model_shape(section: ModelSection, sequence: int | None = None) -> ModelShape:
    """The model of a section: full attention heads, heads that fill hidden, an MLP of 4 x hidden where not
    stated.

    Learned positions reach to `max_positions`, or to the training's sequence. Raises ShapeError where widths
    clash.
    """
    stated = section.model_dump(exclude={"name", "description", "source"}, exclude_none=True)
    derived: dict[str, Any] = {
        "kv_heads": section.heads,
        "ffn_hidden": 4 * section.hidden,
        "max_positions": sequence or 2048,
    }
    if section.head_dim is None:
        derived["head_dim"] = hidden_per_head(section.hidden, section.heads)
    return ModelShape(name=section.name or "unnamed", **(derived | stated))


def _cluster(draft: Draft, problems: list[UserError]) -> ClusterSpec | None:
    if draft.cluster_file is not None:
        return ClusterSpec(draft.cluster_file)
    assert draft.section.cluster is not None
    return _described_cluster(draft.section.cluster, draft, problems)


def _described_cluster(section: ClusterSection, draft: Draft, problems: list[UserError]) -> ClusterSpec | None:
    """The cluster of a section, its parts looked up in the catalogue."""
    try:
        gpu = draft.catalog.gpu(section.gpu)
        key = "nic"
        if section.nic is not None:
            draft.catalog.nic_for(section.nic.kind, section.nic.gbit_per_s)
    except UserError as error:
        key = "nic" if "NIC" in error.message else "gpu"
        where = draft.places.where(("cluster", key))
        problems.append(type(error)(error.message, where=where, fix=error.fix))
        return None
    per_node = section.gpus_per_node or gpu.gpus_per_node
    nodes = f"{section.nodes} x " if section.nodes else ""
    return ClusterSpec(
        name=f"{nodes}{per_node} x {gpu.name}",
        gpu=gpu.name,
        nodes=section.nodes,
        gpus_per_node=per_node,
        nics_per_node=section.nics_per_node,
        nic_gbit_per_s=section.nic.gbit_per_s if section.nic else None,
        nic_kind=section.nic.kind if section.nic else "",
    )


def _cluster_gpus(cluster: ClusterSpec) -> int | None:
    return None if cluster.nodes is None or cluster.gpus_per_node is None else cluster.nodes * cluster.gpus_per_node


def _seats(draft: Draft, cluster: ClusterSpec) -> tuple[int, ...] | None:
    """The GPUs that the placement names, in order of rank; None where the file places nothing.

    Raises ScenarioError or TopologyError with the place of what cannot be.
    """
    section = draft.section.parallelism.placement
    if section is None:
        return None
    asked = placement.placing(section, draft.path.parent, draft.places)
    if asked.needs_cluster:
        if cluster.described and cluster.nodes is None:
            where = draft.places.where(placement.KEYS)
            message = "the placement names nodes, but the cluster does not say how many it has"
            raise ScenarioError(message, where=where, fix="add nodes: to the cluster")
        return placement.on_cluster(asked, open_cluster(cluster, None, draft.catalog))
    found, most = placement.numbers(asked), _cluster_gpus(cluster)
    beyond = next((seat for seat in asked.seats if most is not None and (seat.gpu or 0) >= most), None)
    if beyond is not None:
        message = f"the placement names GPU {beyond.gpu} of {most}"
        raise ScenarioError(message, where=beyond.where, fix=f"use 0 to {(most or 1) - 1}")
    return found


def _placement(draft: Draft, request: ShapeRequest, seats: tuple[int, ...]) -> tuple[int, ...]:
    """The GPU of each rank: of named nodes the first that suffice, else what was given."""
    section = draft.section.parallelism.placement
    assert section is not None
    if section.nodes is None or request.ranks is None:
        return seats
    if len(seats) < request.ranks:
        where = draft.places.where((*placement.KEYS, "nodes"))
        message = f"the nodes have {len(seats)} living GPUs, but the mesh has {request.ranks} ranks"
        raise ShapeError(message, where=where, fix="name more nodes, or make the mesh smaller")
    return seats[: request.ranks]


def _sized(cluster: ClusterSpec, mesh: Mesh, assumptions: list[str]) -> ClusterSpec:
    """The described cluster with as many nodes as the mesh needs, where none are stated."""
    per_node = cluster.gpus_per_node or 1
    if cluster.nodes is None:
        last = mesh.world if mesh.placement is None else max(mesh.placement) + 1
        nodes = -(-last // per_node)
        return replace(cluster, nodes=nodes, name=f"{nodes} x {cluster.name}")
    if mesh.world < cluster.nodes * per_node:
        assumptions.append(f"the mesh uses {mesh.world} of the cluster's {cluster.nodes * per_node} GPUs")
    return cluster


def _request(
    section: ScenarioSection, model: ModelShape, cluster_gpus: int | None, assumptions: list[str]
) -> ShapeRequest:
    shape, training = _with_chunks(section), section.training
    chunks = shape.vpp
    dp, world = shape.dp, None
    stated = shape.tp * shape.cp * shape.pp * (shape.dp or 1)
    if cluster_gpus is not None and (shape.dp is None or stated > cluster_gpus):
        world = cluster_gpus
    if dp is None:
        left = cluster_gpus // stated if cluster_gpus and cluster_gpus % stated == 0 else 1
        assumptions.append(f"parallelism.dp not stated: {left}")
        dp = left if world is None else None
    return ShapeRequest(
        tp=shape.tp,
        cp=shape.cp,
        pp=shape.pp,
        dp=dp,
        ep=shape.ep,
        etp=shape.etp,
        order=shape.order or DEFAULT_ORDER,
        world=world,
        vpp=shape.vpp,
        layers=model.layers,
        heads=model.heads,
        kv_heads=model.kv_heads,
        ffn_hidden=model.ffn_hidden,
        experts=0,
        global_batch=training.global_batch,
        microbatch=training.microbatch,
        sequence=training.sequence or model.max_positions,
        stage_layers=_stage_layers(training, shape, model.layers),
        sequence_parallel=shape.sequence_parallel,
        causal=splits_blocks(training, shape),
        model_chunks=chunks_of_model(training.schedule or "", chunks),
        in_groups=training.schedule is None or in_groups(training.schedule, chunks),
        ragged=training.ragged,
    )


def _with_chunks(section: ScenarioSection) -> ParallelismSection:
    """The parallelism with its chunks a stage: as stated, else 2 where the schedule has no other number."""
    shape = section.parallelism
    stated = "vpp" in shape.model_fields_set
    two = section.training.schedule in TWO_CHUNKS and shape.pp > 1 and not stated
    return shape.model_copy(update={"vpp": 2}) if two else shape


def _stage_layers(training: TrainingSection, shape: ParallelismSection, layers: int) -> tuple[int, ...] | None:
    if training.stage_layers in (BALANCED, BALANCED_WITH_EMBEDDING):
        chunks = chunks_of_model(training.schedule or "", shape.vpp)
        with_embedding = training.stage_layers == BALANCED_WITH_EMBEDDING
        try:
            return balanced_layers(layers, shape.pp, chunks, embedding_as_layer=with_embedding)
        except ShapeError:
            return None  # the shape check says it better
    return cast("tuple[int, ...] | None", training.stage_layers)


def _recipe(section: ScenarioSection, model: ModelShape, mesh: Mesh, assumptions: list[str]) -> Recipe:
    """The recipe with what the file leaves open filled in; each filling that matters is an assumption."""
    training, shape = section.training, _with_chunks(section)
    precision = training.precision or "bf16"
    defaults: dict[str, tuple[Any, bool]] = {
        "precision": (precision, True),
        "recompute": ("none", True),
        "schedule": ("none" if mesh.pp == 1 else "1f1b" if shape.vpp == 1 else "interleaved", mesh.pp > 1),
        "attention": ("flash", True),
        "overlap_dp": (training.zero_stage == 3, mesh.dp * mesh.cp > 1),
        "gradient_dtype": (precision if precision == "fp16" else "fp32", True),
        "p2p": (default_p2p(training.schedule), mesh.pp > 1),
        "post_validation": (Recipe.post_validation, training.schedule in SPLIT),
        "scatter_gather": (Recipe.scatter_gather, mesh.pp > 1 and mesh.tp > 1),
        "sequence": (model.max_positions, True),
    }
    chosen: dict[str, Any] = {}
    for key, (default, matters) in defaults.items():
        stated = getattr(training, key)
        chosen[key] = default if stated is None else stated
        if stated is None and matters:
            assumptions.append(f"training.{key} not stated: {str(default).lower()}")
    return Recipe(
        global_batch=training.global_batch,
        microbatch=training.microbatch,
        vpp=shape.vpp,
        sequence_parallel=shape.sequence_parallel,
        bucket_bytes=Recipe.bucket_bytes if training.bucket is None else training.bucket,
        stage_layers=_stage_layers(training, shape, model.layers),
        overlap_tp=cast("TpOverlap | None", training.overlap_tp),
        overlap_params=bool(training.overlap_params),
        fp8_scaling=cast("Fp8Scaling | None", training.fp8_scaling),
        fp8_gather=bool(training.fp8_gather),
        **sharding_fields(training),
        **context_fields(training, mesh, assumptions),
        **chosen,
    )


def _published(section: ScenarioSection) -> dict[str, Any] | None:
    stated = section.published
    if stated is None:
        return None
    found = {
        "step_time_s": stated.step_time,
        "tflops_per_gpu": stated.tflops_per_gpu,
        "convention": stated.convention,
        "tokens_per_s_per_gpu": stated.tokens_per_s_per_gpu,
        "source": stated.source,
        "row": stated.row,
    }
    return {key: value for key, value in found.items() if value is not None}
