"""Transformer shapes: parameters, floating-point operations, bytes, operators."""

from traincast.model.flops import (
    CONVENTIONS,
    Convention,
    ForwardFlops,
    executed_flops,
    forward_flops,
    hardware_flops,
    mfu,
    model_causal_flops,
    model_flops,
    step_flops,
)
from traincast.model.parameters import (
    StageParameters,
    closed_form_parameters,
    embedding_parameters,
    head_parameters,
    layer_parameters,
    local_kv_heads,
    norm_parameters,
    padded_vocab,
    stage_parameters,
    total_parameters,
)
from traincast.model.shape import Grouping, ModelShape, gpt, llama

__all__ = [
    "CONVENTIONS",
    "Convention",
    "ForwardFlops",
    "Grouping",
    "ModelShape",
    "StageParameters",
    "closed_form_parameters",
    "embedding_parameters",
    "executed_flops",
    "forward_flops",
    "gpt",
    "hardware_flops",
    "head_parameters",
    "layer_parameters",
    "llama",
    "local_kv_heads",
    "mfu",
    "model_causal_flops",
    "model_flops",
    "norm_parameters",
    "padded_vocab",
    "stage_parameters",
    "step_flops",
    "total_parameters",
]
