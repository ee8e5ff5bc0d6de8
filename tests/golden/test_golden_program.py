"""The operations of one microbatch of rank 0, written out: 24 layers, h = 4096, TP2 PP4 DP2.

The golden file changes only when the lowering changes; read the difference before accepting it
(`TRAINCAST_UPDATE_GOLDEN=1 pytest tests/golden` writes it anew).
"""

import os
from pathlib import Path

from traincast.catalog import load_catalog
from traincast.lower import Job
from traincast.lower.listing import operations
from traincast.mesh import Mesh
from traincast.model.shape import gpt
from traincast.profile import load_profile
from traincast.recipe import Recipe
from traincast.topology import selene

GOLDEN = Path(__file__).with_name("rank0_24l_h4096_tp2_pp4_dp2.txt")


def job() -> Job:
    model = gpt("gpt", hidden=4096, layers=24, heads=32, vocab=51200)
    recipe = Recipe(global_batch=16, microbatch=1, sequence=2048, recompute="full", gradient_dtype="fp16")
    gpu = load_catalog().gpu("A100-80GB-SXM")
    return Job(model, Mesh(tp=2, pp=4, dp=2), recipe, load_profile("a100-selene-megatron2021"), selene(2), gpu)


def test_rank_0_program() -> None:
    lines = list(operations(job(), stage=0))
    text = "\n".join(lines) + "\n"
    if os.environ.get("TRAINCAST_UPDATE_GOLDEN"):
        GOLDEN.write_text(text, encoding="utf-8")
    assert text == GOLDEN.read_text(encoding="utf-8")


def test_golden_program_counts() -> None:
    """Counted by hand: 6 layers x (6 products forward, 6 recomputed, 12 backward); 12 all-reduces forward, 12 again
    and 12 backward, one for the embedding; one message out and one in."""
    lines = GOLDEN.read_text(encoding="utf-8").splitlines()
    assert sum("gemm" in line for line in lines) == 6 * (6 + 6 + 12)
    assert sum("all_reduce tp" in line for line in lines) == 1 + 6 * (2 + 2 + 2)
    assert [line for line in lines if "message" in line] == [
        "F 0 pp-send  message  activations to stage 1",
        "B 0 pp-recv  message  gradients from stage 1",
    ]
