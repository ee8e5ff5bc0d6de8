"""Ranks and groups: worked cases of Megatron-Core's and PyTorch's documentation, to the rank."""

import time

import numpy as np
import pytest

from traincast.errors import ShapeError
from traincast.mesh import Grid, Mesh, families_of, family_groups, nodes_of_ranks, spreads


def test_16_ranks_tp2_pp4_dp2():
    mesh = Mesh(tp=2, pp=4, dp=2)
    assert mesh.groups("pp").tolist() == [[0, 4, 8, 12], [1, 5, 9, 13], [2, 6, 10, 14], [3, 7, 11, 15]]
    assert mesh.groups("dp").tolist() == [
        [0, 2], [1, 3], [4, 6], [5, 7], [8, 10], [9, 11], [12, 14], [13, 15],
    ]  # fmt: skip
    assert mesh.groups("tp").tolist() == [[rank, rank + 1] for rank in range(0, 16, 2)]
    assert mesh.groups("tp", "pp").tolist() == [[0, 1, 4, 5, 8, 9, 12, 13], [2, 3, 6, 7, 10, 11, 14, 15]]
    assert mesh.embedding_groups().tolist() == [[0, 12], [1, 13], [2, 14], [3, 15]]


def test_8_ranks_tp2_cp2_dp2():
    mesh = Mesh(tp=2, cp=2, dp=2)
    assert mesh.groups("cp").tolist() == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert mesh.groups("dp", "cp").tolist() == [[0, 2, 4, 6], [1, 3, 5, 7]]


def test_8_ranks_tp2_dp4_with_an_expert_mesh_etp2_ep2_edp2():
    mesh = Mesh(tp=2, dp=4, etp=2, ep=2)
    assert mesh.edp == 2
    assert mesh.groups("dp").tolist() == [[0, 2, 4, 6], [1, 3, 5, 7]]
    assert mesh.expert_groups("ep").tolist() == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert mesh.expert_groups("edp").tolist() == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert mesh.expert_groups("etp", "ep").tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert family_groups(mesh, "tp-ep").tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_expert_mesh_has_no_cp_case_of_megatron_issue_5958():
    # world 32, CP16 DP2 EP16: CP and EP lie over the same ranks but in different meshes; EP16 leaves EDP2
    mesh = Mesh(cp=16, dp=2, ep=16)
    assert mesh.groups("cp").tolist() == [list(range(16)), list(range(16, 32))]
    assert mesh.groups("dp").tolist() == [[rank, rank + 16] for rank in range(16)]
    assert mesh.expert_groups("ep").tolist() == [list(range(16)), list(range(16, 32))]
    assert mesh.edp == 2


def test_the_2_by_4_device_mesh_of_pytorchs_documentation():
    mesh = Mesh.from_device_mesh((2, 4), ("dp", "tp"))
    assert mesh.groups("dp").tolist() == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert mesh.groups("tp").tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_a_row_major_array_dp_tp_pp_cp_is_the_order_cp_pp_tp_dp():
    mesh = Mesh(tp=8, pp=64, dp=6, order="cp-pp-tp-dp")
    assert mesh == Mesh.from_device_mesh((6, 8, 64, 1), ("dp", "tp", "pp", "cp"))
    assert [mesh.stride(axis) for axis in ("dp", "tp", "pp", "cp")] == [8 * 64, 64, 1, 1]
    assert mesh.neighbour(0, "dp", 1) == 512
    array = np.arange(mesh.world).reshape(6, 8, 64, 1)
    assert mesh.groups("pp").tolist() == array.transpose(0, 1, 3, 2).reshape(-1, 64).tolist()


def test_strides_of_the_default_order():
    mesh = Mesh(tp=8, cp=2, dp=3, pp=4)
    assert [mesh.stride(axis) for axis in ("tp", "cp", "dp", "pp")] == [1, 8, 16, 48]
    assert mesh.world == 192


@pytest.mark.parametrize("order", ["tp-dp-pp", "tp-pp-dp", "dp-tp-pp", "pp-dp-tp"])
def test_axes_of_size_one_may_be_left_out(order):
    mesh = Mesh(tp=2, pp=4, dp=2, order=order)
    full = Mesh(tp=2, pp=4, dp=2, order=f"ep-{order}-cp")
    for axis in ("tp", "cp", "dp", "pp"):
        assert np.array_equal(mesh.groups(axis), full.groups(axis))
    assert mesh.signature() == full.signature()


def test_coordinates_and_rank_are_inverse():
    mesh = Mesh(tp=2, cp=3, dp=4, pp=5, order="dp-pp-cp-tp")
    coordinates = mesh.coordinates()
    assert all(len(column) == mesh.world for column in coordinates.values())
    for rank in range(mesh.world):
        assert mesh.rank(**{axis: int(column[rank]) for axis, column in coordinates.items()}) == rank
    assert mesh.rank(pp=1) == mesh.stride("pp")


def test_group_of_is_the_row_that_holds_the_rank():
    mesh = Mesh(tp=2, cp=2, dp=2, pp=2, ep=4)
    for rank in range(mesh.world):
        (row,) = [group for group in mesh.groups("dp", "cp").tolist() if rank in group]
        assert mesh.group_of(rank, "dp", "cp").tolist() == row
        (row,) = [group for group in mesh.expert_groups("ep").tolist() if rank in group]
        assert mesh.expert_group_of(rank, "ep").tolist() == row


def test_neighbours_go_round():
    mesh = Mesh(tp=2, pp=4, dp=2)
    assert [mesh.neighbour(rank, "pp", 1) for rank in (0, 4, 8, 12)] == [4, 8, 12, 0]
    assert mesh.neighbour(0, "pp", -1) == 12
    assert Mesh(dp=8, ep=2).neighbour(2, "edp", 1) == 4


def test_every_rank_is_its_own_group_without_axes():
    assert Mesh(tp=2, dp=2).groups().tolist() == [[0], [1], [2], [3]]
    assert Mesh().embedding_groups().tolist() == [[0]]


def test_a_grid_takes_any_axis_names():
    # guidance, sequence and pipeline axes of an image model: pp fastest, then sp, then cfg
    grid = Grid(("sp", "pp", "cfg", "dp"), (2, 2, 2, 2))
    assert grid.groups(("cfg",)).tolist()[:2] == [[0, 4], [1, 5]]
    assert grid.groups(("sp", "cfg")).tolist()[0] == [0, 1, 4, 5]


@pytest.mark.parametrize(
    ("ask", "word"),
    [
        (lambda mesh: mesh.groups("ep"), "ep"),
        (lambda mesh: mesh.expert_groups("cp"), "cp"),
        (lambda mesh: mesh.size("x"), "x"),
        (lambda mesh: mesh.rank(tp=2), "tp 2"),
        (lambda mesh: mesh.neighbour(4, "tp", 1), "rank 4"),
        (lambda mesh: family_groups(mesh, "tp-dp"), "tp-dp"),
    ],
)
def test_questions_that_have_no_answer_are_refused_with_a_fix(ask, word):
    with pytest.raises(ShapeError, match=word) as caught:
        ask(Mesh(tp=2, dp=2))
    assert caught.value.fix
    assert caught.value.exit_code == 2


def test_expert_stages_must_be_the_dense_ones():
    # Megatron-Core asserts the same: get_ranks("pp") of both generators are equal
    with pytest.raises(ShapeError, match=r"stride 4 .* 8"):
        Mesh(tp=2, cp=2, dp=2, pp=2, ep=8, order="tp-cp-ep-pp-dp")
    dense_only = Mesh(tp=2, cp=2, dp=2, pp=2, order="tp-cp-ep-pp-dp")
    with pytest.raises(ShapeError, match="put pp last"):
        dense_only.expert_groups("ep")
    assert dense_only.size("edp") == 8


def test_placement_maps_ranks_to_gpus():
    mesh = Mesh(tp=2, dp=2, placement=(4, 5, 0, 1))
    assert mesh.physical(mesh.groups("dp")).tolist() == [[4, 0], [5, 1]]
    assert Mesh(tp=2, dp=2).physical([3, 0]).tolist() == [3, 0]


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"placement": (0, 1, 2)}, "3 GPUs for a world of 4"),
        ({"placement": (0, 1, 2, 2)}, "GPU 2 to two ranks"),
        ({"placement": (0, 1, 2, -1)}, "GPU -1"),
        ({"order": "tp-tp-dp"}, "no permutation"),
        ({"order": "tp-xp-dp"}, "no permutation"),
        ({"order": "tp-pp"}, "leaves out dp, whose size is 2"),
        (
            {"cp": 2, "dp": 1, "etp": 2, "order": "tp-cp-pp"},
            "leaves out dp, whose size is 2 in the expert mesh",
        ),
        ({"tp": 0}, "tp 0 is below 1"),
        ({"ep": 3}, "world 4 is not a multiple of etp 1 \\* ep 3 \\* pp 1 = 3"),
    ],
)
def test_grids_that_cannot_be(changes, word):
    with pytest.raises(ShapeError, match=word) as caught:
        Mesh(**{"tp": 2, "dp": 2, **changes})
    assert caught.value.fix


def test_all_families_of_large_worlds_are_cheap():
    # a work bound, not a benchmark: the issue is an accidental loop over ranks or over groups
    for mesh, limit_s in ((Mesh(tp=8, pp=64, dp=6), 1.0), (Mesh(tp=8, cp=16, dp=50, pp=16, ep=8), 5.0)):
        start = time.perf_counter()
        for family in families_of(mesh):
            assert family_groups(mesh, family.name).size <= mesh.world
        spreads(mesh, nodes_of_ranks(mesh, 8))
        assert time.perf_counter() - start < limit_s
