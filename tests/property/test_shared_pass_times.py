"""Jobs share the times of passes that they have in common, and of no others (`lower.classes._pass_key`)."""

from dataclasses import replace
from random import Random
from typing import Any, get_args

from traincast.catalog import Gpu, load_catalog
from traincast.lower import Job, lower
from traincast.lower.classes import _times_of
from traincast.mesh import Mesh
from traincast.model.shape import Grouping, gpt, llama
from traincast.profile import load_profile
from traincast.recipe import Fp8Scaling, Recipe
from traincast.topology import selene

MODELS = (gpt("a", 1024, 8, 16), llama("b", 1024, 8, 16, Grouping(8, 2816)))
PROFILES = (
    "a100-selene-megatron2021",
    "a100-selene-megatron2022",
    "a100-80gb-llmfoundry2023",
    "a100-80gb-mosaicgpt2023",  # autocast
    "a100-80gb-internevo",  # owners
    "h100-96gb-torchtitan2024",  # cp_by_block, copies along sequences
    "b200-torchtitan2025",  # blocks along either axis
    "blackwell-nemo-megatroncore2025",  # blocks along both at once
)
BASE = Recipe(global_batch=64, microbatch=1, sequence=2048, precision="bf16", attention="flash", gradient_dtype="bf16")
CHANGES: tuple[dict[str, Any], ...] = (
    {},
    {"global_batch": 32},
    {"microbatch": 2},
    {"sequence": 4096},
    {"recompute": "full"},
    {"recompute": "every_2nd"},
    {"attention": "unfused"},
    {"gradient_dtype": "fp32"},
    {"zero_stage": 1},
    {"zero_stage": 2, "no_sync": False},
    {"zero_stage": 3, "overlap_dp": True},
    {"zero_stage": 3, "reshard_after_forward": False, "offload_states": "optimizer"},
    {"overlap_tp": "bulk"},
    {"sequence_parallel": True},
    {"schedule": "zb-h1", "p2p": "async"},
    {"offload_activations": 0.5},
    {"cp_kind": "allgather"},
    {"cp_kind": "allgather", "cp_keep_kv": True},
    {"cp_balance": False},
    {"global_batch": 56, "microbatch": 3},
    {"post_validation": True},
    {"zero_stage": 1},
    {"schedule": "interleaved", "vpp": 2},
    {"schedule": "interleaved", "vpp": 2, "microbatch": 2},
    {"microbatch": 2, "sequence_parallel": True},
    {"microbatch": 2, "sequence_parallel": True, "overlap_tp": "async"},
    {"precision": "mxfp8"},
    {"precision": "mxfp8", "sequence_parallel": True, "overlap_tp": "split"},
    *({"precision": "fp8", "fp8_scaling": one} for one in get_args(Fp8Scaling)),
    {"precision": "fp8", "sequence_parallel": True, "overlap_tp": "split", "fp8_scaling": "rowwise"},
    {"precision": "fp8", "zero_stage": 3, "overlap_dp": True, "fp8_gather": True},
)
MESHES = (
    Mesh(dp=8),
    Mesh(dp=4, pp=2),
    Mesh(tp=2, dp=4),
    Mesh(tp=2, pp=2, dp=2),
    Mesh(cp=2, dp=4),
    Mesh(cp=2, pp=2, dp=2),
)


def jobs() -> list[Job]:
    """Every change on every mesh under every stack, in an order without rule; what cannot be is left out."""
    random, cluster, catalog = Random(7), selene(nodes=2), load_catalog()
    found = []
    for mesh in MESHES:
        for profile in map(load_profile, PROFILES):
            model = random.choice(MODELS)
            gpu = catalog.gpu(profile.gpu)
            for change in (one for one in CHANGES if can_be(mesh, one) and runs_on(gpu, one)):
                schedule = change.get("schedule", "none" if mesh.pp == 1 else "1f1b")
                recipe = replace(BASE, **{**change, "schedule": schedule})
                found.append(Job(model, mesh, recipe, profile, cluster, gpu))
    random.shuffle(found)
    return found


def runs_on(gpu: Gpu, change: dict[str, Any]) -> bool:
    """Whether a GPU has the precision of a change; of the newer ones only what the older cannot do is drawn."""
    precision = change.get("precision", "bf16")
    return precision in gpu.peaks_flops_per_s and (precision != "bf16" or "mxfp8" not in gpu.peaks_flops_per_s)


def can_be(mesh: Mesh, change: dict[str, Any]) -> bool:
    """Whether a change means anything on a mesh."""
    of_context = any(name.startswith("cp_") for name in change)
    of_pipeline = "schedule" in change
    of_tensors = "sequence_parallel" in change or "overlap_tp" in change
    unfused = change.get("attention") == "unfused"
    return (
        (not of_context or mesh.cp > 1)
        and (not of_pipeline or mesh.pp > 1)
        and (not of_tensors or mesh.tp > 1)
        and not (unfused and mesh.cp > 1)
    )


def test_a_job_costs_the_same_after_others_as_alone() -> None:
    """Two ways to the same numbers: with what other jobs left behind, and from nothing."""
    drawn = jobs()
    assert len(drawn) > 200
    _times_of.cache_clear()
    together = [lower(one).program.classes for one in drawn]
    assert _times_of.cache_info().hits > 0
    for one, classes in zip(drawn, together, strict=True):
        _times_of.cache_clear()
        assert lower(one).program.classes == classes
