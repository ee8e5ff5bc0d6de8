"""Bytes on one GPU of every pipeline stage, itemised, and whether they fit.

States (parameters, gradients, optimiser) follow from the parameter counts; activations from what a layer
keeps for its backward pass times the forward passes that the schedule has in flight. What can only be assumed
(communicator buffers, CUDA context, allocator) is itemised as well, so that nobody mistakes it for the rest.
"""

from traincast.memory.activations import (
    layer_activation_bytes,
    layers_activation_bytes,
    layers_before,
    scores_bytes,
    weight_gradient_share,
    weight_share,
)
from traincast.memory.flight import chunks_in_flight
from traincast.memory.job import (
    DEFAULT_OVERHEADS,
    EAGER_LOGIT_BYTES,
    FUSED_LOGIT_BYTES,
    MemoryJob,
    Overheads,
    overheads_of,
    parameter_bytes,
)
from traincast.memory.legal import job_problems
from traincast.memory.offload import leaving
from traincast.memory.reading import reported_peak
from traincast.memory.remedy import Remedy, nearest_that_fits
from traincast.memory.sharding import Sharding, sharding
from traincast.memory.stages import BORDERLINE, chunk_layers, estimate, estimate_job, whole_layers
from traincast.memory.states import held_parameters, optimizer_bytes
from traincast.memory.types import MemoryEstimate, StageMemory, Verdict

__all__ = [
    "BORDERLINE",
    "DEFAULT_OVERHEADS",
    "EAGER_LOGIT_BYTES",
    "FUSED_LOGIT_BYTES",
    "MemoryEstimate",
    "MemoryJob",
    "Overheads",
    "Remedy",
    "Sharding",
    "StageMemory",
    "Verdict",
    "chunk_layers",
    "chunks_in_flight",
    "estimate",
    "estimate_job",
    "held_parameters",
    "job_problems",
    "layer_activation_bytes",
    "layers_activation_bytes",
    "layers_before",
    "leaving",
    "nearest_that_fits",
    "optimizer_bytes",
    "overheads_of",
    "parameter_bytes",
    "reported_peak",
    "scores_bytes",
    "sharding",
    "weight_gradient_share",
    "weight_share",
    "whole_layers",
]
