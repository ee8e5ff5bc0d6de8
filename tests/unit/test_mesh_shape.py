"""Shapes that cannot be: each refusal names the two numbers that clash, and a fix that works.

The cases are public reports of people whose launcher took the shape silently or failed with a bare assertion.
"""

import pytest

from traincast.errors import ShapeError
from traincast.mesh import Mesh, ShapeRequest, build_mesh, check_shape, shape_warnings


def refusal(**shape):
    with pytest.raises(ShapeError) as caught:
        build_mesh(ShapeRequest(**shape))
    assert caught.value.exit_code == 2
    return str(caught.value)


REFUSED = [
    # world
    ({"world": 8, "tp": 8, "pp": 2}, ("world 8", "= 16", "tp 4", "pp 1")),
    ({"world": 16, "dp": 3}, ("world 16", "= 3", "dp 16")),
    ({"world": 4, "tp": 8}, ("world 4", "= 8", "world 8")),
    # batch
    ({"dp": 23, "global_batch": 32}, ("global batch 32", "dp 23", "global batch 23 or 46", "dp 16 or 32")),
    ({"dp": 4, "global_batch": 30, "microbatch": 3}, ("global batch 30", "= 12", "24 or 36", "dp 2 or 5")),
    # heads
    ({"tp": 6, "heads": 32}, ("32 heads", "tp 6", "tp 4 or 8")),
    ({"tp": 8, "heads": 40, "kv_heads": 5}, ("kv_heads 5", "tp 8", "tp 5 or 10")),
    ({"heads": 32, "kv_heads": 5}, ("32 heads", "5 kv_heads", "4 or 8 kv_heads")),
    ({"tp": 3, "ffn_hidden": 11008}, ("ffn_hidden 11008", "tp 3", "tp 2 or 4")),
    # layers (Megatron-LM issues 1304, 2718, 468; ms-swift 5737)
    ({"pp": 4, "layers": 30}, ("30 layers", "pp 4", "8, 8, 7, 7", "7, 8, 8, 7", "pp 3 or 5")),
    ({"pp": 4, "layers": 46}, ("46 layers", "11, 12, 12, 11", "pp 2")),
    ({"pp": 16, "vpp": 2, "layers": 80}, ("80 layers", "pp 16", "vpp 2", "= 32", "vpp 1 or 5")),
    ({"pp": 2, "layers": 48, "stage_layers": (11, 13)}, ("11 + 13 = 24", "48 layers")),
    ({"pp": 4, "layers": 4, "stage_layers": (2, 2)}, ("2 entries", "= 4 chunks")),
    ({"pp": 2, "layers": 2, "stage_layers": (3, -1)}, ("holds -1", "0 or more")),
    ({"pp": 4, "layers": 3, "uneven": True}, ("3 layers", "= 4 chunks")),
    # interleaving (NeMo issue 14288: 3 microbatches on 6 stages)
    ({"pp": 4, "vpp": 2, "layers": 32, "global_batch": 6}, ("6 microbatches", "pp 4", "4 or 8")),
    ({"pp": 6, "vpp": 2, "layers": 24, "global_batch": 3}, ("3 microbatches", "pp 6", "global batch 6")),
    ({"vpp": 2, "layers": 24}, ("vpp 2", "pp is 1")),
    # experts (slime 2077: ETP1 EP8 PP2 on 8 GPUs; EP4 is right)
    ({"world": 8, "ep": 8, "pp": 2}, ("world 8", "etp 1 (default)", "ep 8", "pp 2", "= 16", "ep 4")),
    ({"dp": 6, "ep": 3, "experts": 8}, ("8 experts", "ep 3", "ep 2 or 4")),
    ({"dp": 4, "ep": 4, "experts": 0}, ("ep 4", "0 experts", "ep 1")),
    ({"dp": 8, "etp": 3, "experts": 8, "world": 8}, ("world 8", "etp 3")),
    # sequence
    ({"cp": 3, "sequence": 4096}, ("sequence 4096", "= 6", "cp 2 or 4")),
    ({"cp": 2, "sequence": 4098}, ("sequence 4098", "= 4", "4096 or 4100")),
    ({"tp": 3, "sequence": 4096, "sequence_parallel": True}, ("sequence 4096", "= 3")),
    # grid
    ({"tp": 0}, ("tp 0", "1 or more")),
    ({"layers": 0}, ("layers 0", "1 or more")),
    ({"tp": 2, "dp": 2, "order": "dp-pp"}, ("leaves out tp", "2")),
    ({"tp": 2, "order": "tp-tp"}, ("'tp-tp'", "each axis once")),
    ({"tp": 2, "placement": (0,)}, ("1 GPUs", "world of 2")),
    ({"tp": 2, "pp": 2, "dp": 4, "ep": 4, "order": "tp-cp-ep-pp-dp"}, ("stride 2", "4", "tp-cp-ep-dp-pp")),
]


@pytest.mark.parametrize(("shape", "words"), REFUSED, ids=[str(shape) for shape, _ in REFUSED])
def test_refused_with_the_two_numbers_and_a_fix(shape, words):
    message = refusal(**shape)
    assert "\n" not in message
    assert "(fix: " in message
    for word in words:
        assert word in message


@pytest.mark.parametrize(
    "shape",
    [
        {"world": 8, "tp": 4, "pp": 2},
        {"world": 16, "tp": 8, "pp": 2},
        {"dp": 16, "global_batch": 32},
        {"tp": 4, "heads": 32, "kv_heads": 8},
        {"tp": 5, "heads": 40, "kv_heads": 5},
        {"pp": 3, "layers": 30},
        {"pp": 4, "layers": 30, "stage_layers": (8, 8, 7, 7)},
        {"pp": 4, "layers": 30, "stage_layers": (7, 8, 8, 7)},
        {"pp": 16, "vpp": 5, "layers": 80},
        {"pp": 4, "vpp": 2, "layers": 32, "global_batch": 8},
        {"world": 8, "ep": 4, "pp": 2},
        {"cp": 4, "sequence": 4096},
        {"cp": 3, "sequence": 4095, "causal": False},
    ],
)
def test_the_fixes_work(shape):
    assert check_shape(ShapeRequest(**shape)) == ()


def test_all_refusals_come_at_once_a_line_each():
    lines = refusal(world=12, tp=5, pp=2, heads=32, layers=31, experts=8, ep=7, sequence=100, cp=1).splitlines()
    assert lines[0] == "5 errors"
    assert len(lines) == 6
    assert all("(fix: " in line for line in lines[1:])


def test_few_microbatches_are_flagged_but_run():
    request = ShapeRequest(pp=6, global_batch=3)
    assert build_mesh(request) == Mesh(pp=6)
    (warning,) = shape_warnings(request)
    assert "3 microbatches" in warning
    assert "pp 6" in warning
    assert "global batch 6 or more" in warning


def test_fewer_kv_heads_than_tp_are_shared_and_flagged():
    (warning,) = shape_warnings(ShapeRequest(tp=8, heads=64, kv_heads=2))
    assert "held by 4 ranks" in warning


def test_uneven_stages_and_a_ragged_batch_are_legal_when_asked_for():
    request = ShapeRequest(pp=4, dp=23, layers=30, uneven=True, global_batch=96, ragged=True)
    assert build_mesh(request).world == 92
    warnings = shape_warnings(request)
    assert any("7, 8, 8, 7" in line for line in warnings)
    assert any("last microbatch is smaller" in line for line in warnings)


def test_ragged_batches_count_their_last_microbatch():
    # 96 sequences over dp 23 are 5 rounds of microbatches, no multiple of pp 4
    assert "5 microbatches" in refusal(pp=4, vpp=2, layers=32, dp=23, global_batch=96, ragged=True)


def test_dp_is_what_the_world_leaves():
    assert build_mesh(ShapeRequest(tp=2, pp=4, world=16)) == Mesh(tp=2, pp=4, dp=2)
    assert build_mesh(ShapeRequest(tp=2)) == Mesh(tp=2)


def test_an_order_megatron_refuses_is_flagged():
    # stages agree, but pp is not last while dp 4 and edp 2 differ
    request = ShapeRequest(tp=2, pp=2, dp=4, etp=2, ep=2, order="tp-pp-ep-dp")
    assert build_mesh(request).expert_groups("ep").shape == (8, 2)
    assert any("dp 4 and edp 2" in line for line in shape_warnings(request))
