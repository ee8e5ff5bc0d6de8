"""The keys of scenario and model files, with their types. Nothing here knows physics."""

import re
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictBool, StrictInt, StrictStr
from pydantic_core import PydanticCustomError

from traincast.catalog import NIC_KINDS
from traincast.errors import UserError
from traincast.lower.unmodelled import UNMODELLED_PRECISIONS
from traincast.mesh.limits import MOST, MOST_RANKS
from traincast.model import CONVENTIONS
from traincast.model.shape import Norm, Positions
from traincast.recipe import (
    BYTES_PER_ELEMENT,
    AttentionKernel,
    ContextKind,
    Fp8Scaling,
    OffloadedStates,
    P2PMode,
    ScheduleName,
    TpOverlap,
)
from traincast.recomputation import EXAMPLES, recomputation
from traincast.units import parse_bandwidth, parse_size, parse_time

BALANCED = "balanced"
BALANCED_WITH_EMBEDDING = "balanced_with_embedding"


class NicRate(NamedTuple):
    """A NIC by its kind (empty: any) and raw rate."""

    kind: str
    gbit_per_s: float


def _quantity(parse: Callable[[object], float]) -> BeforeValidator:
    """Unit text -> SI above 0, by a parser of `units`."""

    def check(value: Any) -> float:
        try:
            quantity = parse(value)
        except UserError as error:
            raise PydanticCustomError("unit", "{what}", {"what": error.message, "fix": error.fix or ""}) from error
        if quantity <= 0:
            fix = "give more than 0, or leave the key out"
            raise PydanticCustomError("unit", "{what}", {"what": f"{value!r} is not above 0", "fix": fix})
        return quantity

    return BeforeValidator(check)


def _one_of(*names: str, unmodelled: tuple[str, ...] = ()) -> BeforeValidator:
    """A name out of a list; those that are not modelled are refused later, and not offered."""
    offered = tuple(name for name in names if name not in unmodelled)

    def check(value: Any) -> str:
        if value not in names:
            raise PydanticCustomError("name", "{found} is none of {names}", {"found": repr(value), "names": offered})
        return str(value)

    return BeforeValidator(check)


def _nic(value: Any) -> Any:
    """ "200 Gbit/s ib" -> kind and rate."""
    if isinstance(value, NicRate):
        return value
    rate, kind = value, ""
    if isinstance(value, str) and (found := re.fullmatch(r"(.*\S)\s+([A-Za-z-]+)", value.strip())):
        rate, kind = (found[1], found[2].lower()) if found[2].lower() in NIC_KINDS else (value, "")
    try:
        return NicRate(NIC_KINDS.get(kind, ""), parse_bandwidth(rate) * 8 / 1e9)
    except UserError as error:
        fix = "write a rate and a kind, like 200 Gbit/s ib"
        raise PydanticCustomError("unit", "{what}", {"what": error.message, "fix": fix}) from error


def _stage_layers(value: Any) -> Any:
    """A list of counts, or the name of a way to balance."""
    if value in (BALANCED, BALANCED_WITH_EMBEDDING):
        return value
    if isinstance(value, list) and all(type(count) is int and count >= 0 for count in value) and value:
        return tuple(value)
    form = f"a list of layers a chunk such as [8, 8, 7, 7], {BALANCED} or {BALANCED_WITH_EMBEDDING}"
    raise PydanticCustomError("form", "must be {form}", {"form": form})


def _recompute(value: Any) -> str:
    """A text that says what is computed again."""
    try:
        recomputation(value if isinstance(value, str) else "")
    except ValueError:
        found = {"found": repr(value), "names": tuple(EXAMPLES.split(", "))}
        raise PydanticCustomError("name", "{found} is none of {names}", found) from None
    return str(value)


def _listed(value: Any) -> Any:
    """A list, or one text that stands for a list of one."""
    if isinstance(value, str):
        return (value,)
    if isinstance(value, list):
        return tuple(value)
    raise PydanticCustomError("form", "must be {form}", {"form": "a list"})


Nic = Annotated[NicRate, BeforeValidator(_nic)]
StageLayers = Annotated[tuple[int, ...] | str, BeforeValidator(_stage_layers)]
Count = Annotated[StrictInt, Field(ge=1, le=MOST_RANKS)]
Layers = Annotated[StrictInt, Field(ge=1, le=MOST["layers"])]
Heads = Annotated[StrictInt, Field(ge=1, le=MOST["heads"])]
Width = Annotated[StrictInt, Field(ge=1, le=MOST["hidden"])]
InnerWidth = Annotated[StrictInt, Field(ge=1, le=MOST["ffn_hidden"])]
Vocabulary = Annotated[StrictInt, Field(ge=1, le=MOST["vocab"])]
Tokens = Annotated[StrictInt, Field(ge=1, le=MOST["sequence"])]
Sequences = Annotated[StrictInt, Field(ge=1, le=MOST["global batch"])]
Size = Annotated[float, _quantity(parse_size)]
Time = Annotated[float, _quantity(parse_time)]
Rate = Annotated[float, Field(gt=0)]
Precision = Annotated[str, _one_of(*BYTES_PER_ELEMENT, unmodelled=UNMODELLED_PRECISIONS)]
Gpus = Annotated[tuple[Any, ...], BeforeValidator(_listed)]
Names = Annotated[tuple[StrictStr, ...], BeforeValidator(_listed)]
Recompute = Annotated[str, BeforeValidator(_recompute)]
GradientType = Annotated[str, _one_of("fp32", "fp16", "bf16")]


class Section(BaseModel):
    """A mapping whose keys are all known."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class ModelSection(Section):
    """A model: a file in scenarios/models, or written in the scenario."""

    name: StrictStr | None = None
    description: StrictStr | None = None
    source: StrictStr | None = None
    hidden: Width
    layers: Layers
    heads: Heads
    vocab: Vocabulary
    kv_heads: Heads | None = None
    head_dim: Width | None = None
    ffn_hidden: InnerWidth | None = None
    max_positions: Tokens | None = None
    gated_mlp: StrictBool = False
    tied_embeddings: StrictBool = True
    positions: Annotated[str, _one_of(*get_args(Positions))] = "learned"
    norm: Annotated[str, _one_of(*get_args(Norm))] = "layernorm"
    biases: StrictBool = True


class ClusterSection(Section):
    """A cluster of equal nodes, described in the scenario."""

    gpu: StrictStr
    nodes: Count | None = None
    gpus_per_node: Count | None = None
    nics_per_node: Annotated[StrictInt, Field(ge=0)] | None = None
    nic: Nic | None = None


class PlacementSection(Section):
    """Where ranks run: `gpus` (numbers or names like n3/gpu2), a rank `file`, or all living GPUs of `nodes`."""

    gpus: Gpus | None = None
    file: StrictStr | None = None
    nodes: Names | None = None
    dead_gpus: Names = ()
    distribution: Annotated[str, _one_of("block", "cyclic")] = "block"


class ParallelismSection(Section):
    """The parallel shape."""

    tp: Count = 1
    cp: Count = 1
    ep: Count = 1
    etp: Count | None = None
    pp: Count = 1
    dp: Count | None = None
    vpp: Layers = 1
    order: StrictStr | None = None
    sequence_parallel: StrictBool = False
    placement: PlacementSection | None = None


class TrainingSection(Section):
    """Batch, precision and how the stack trains; None is filled by `build`."""

    global_batch: Sequences
    microbatch: Sequences
    sequence: Tokens | None = None
    precision: Precision | None = None
    recompute: Recompute | None = None
    schedule: Annotated[str, _one_of(*get_args(ScheduleName))] | None = None
    attention: Annotated[str, _one_of(*get_args(AttentionKernel))] | None = None
    zero_stage: Annotated[StrictInt, Field(ge=0, le=3)] = 0
    overlap_dp: StrictBool | None = None
    overlap_params: StrictBool | None = None
    overlap_tp: Annotated[str, _one_of(*get_args(TpOverlap))] | None = None
    fp8_scaling: Annotated[str, _one_of(*get_args(Fp8Scaling))] | None = None
    fp8_gather: StrictBool | None = None
    gradient_dtype: GradientType | None = None
    bucket: Size | None = None
    p2p: Annotated[str, _one_of(*get_args(P2PMode))] | None = None
    scatter_gather: StrictBool | None = None
    stage_layers: StageLayers | None = None
    post_validation: StrictBool | None = None
    reshard_after_forward: StrictBool | None = None
    prefetch: Annotated[StrictInt, Field(ge=0, le=8)] | None = None
    prefetch_bucket: Size | None = None
    fsdp_shard: Count | None = None
    reduce_dtype: GradientType | None = None
    no_sync: StrictBool | None = None
    offload_states: Annotated[str, _one_of(*get_args(OffloadedStates))] | None = None
    ragged: StrictBool = False
    cp_kind: Annotated[str, _one_of(*get_args(ContextKind))] | None = None
    cp_ulysses: Count | None = None
    cp_inner: Annotated[str, _one_of("ulysses", "ring")] | None = None
    cp_balance: StrictBool | None = None
    cp_keep_kv: StrictBool | None = None
    offload_activations: Annotated[float, Field(ge=0, le=1, strict=True)] | None = None


class PublishedSection(Section):
    """Measured figures of the same step."""

    step_time: Time | None = None
    tflops_per_gpu: Rate | None = None
    convention: Annotated[str, _one_of(*CONVENTIONS)] | None = None
    tokens_per_s_per_gpu: Rate | None = None
    source: StrictStr
    row: StrictStr | None = None


class ScenarioSection(Section):
    """A whole scenario, once a model's name has been replaced by its file and a cluster's name taken out."""

    name: StrictStr | None = None
    description: StrictStr | None = None
    source: StrictStr | None = None
    model: ModelSection
    cluster: ClusterSection | None = None
    parallelism: ParallelismSection = ParallelismSection()
    training: TrainingSection
    profile: StrictStr | None = None
    published: PublishedSection | None = None
