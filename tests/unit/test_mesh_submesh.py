"""FSDP and HSDP on a mesh of more axes (PyTorch's conventions: dimension 0 of a pair replicates)."""

import numpy as np
import pytest

from traincast.errors import ShapeError
from traincast.mesh import Mesh, fsdp_mesh, hsdp_mesh


def test_fsdp_takes_the_dp_axis_of_the_same_mesh():
    mesh = Mesh(tp=2, dp=4, pp=2)
    sub = fsdp_mesh(mesh, ("dp",))
    assert sub.dims == ("shard",)
    assert np.array_equal(sub.groups("shard"), mesh.groups("dp"))
    assert np.array_equal(fsdp_mesh(Mesh(dp=8)).groups("shard"), [range(8)])


def test_fsdp_may_shard_over_dp_and_cp_together():
    mesh = Mesh(tp=2, cp=2, dp=2)
    assert np.array_equal(fsdp_mesh(mesh, ("dp", "cp")).groups("shard"), mesh.groups("dp", "cp"))


def test_experts_shard_over_their_own_axis():
    mesh = Mesh(tp=2, dp=4, etp=2, ep=2)
    assert fsdp_mesh(mesh, ("edp",)).groups("shard").tolist() == [[0, 4], [1, 5], [2, 6], [3, 7]]


def test_hsdp_replicates_along_dimension_0():
    # the 2 x 4 DeviceMesh of PyTorch's documentation
    sub = hsdp_mesh(Mesh(dp=8), replicate=2, shard=4)
    assert sub.dims == ("replicate", "shard")
    assert sub.shape == (2, 4)
    assert sub.groups("replicate").tolist() == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert sub.groups("shard").tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_both_dimensions_of_hsdp_are_cut_from_one_mesh():
    mesh = Mesh(tp=2, dp=4, pp=2)
    sub = hsdp_mesh(mesh, replicate=2, shard=2, axes=("dp",))
    assert sorted(sub.ranks.ravel().tolist()) == list(range(16))
    assert sub.groups("shard").tolist()[:2] == [[0, 2], [1, 3]]
    assert sub.groups("replicate").tolist()[:4] == [[0, 4], [1, 5], [2, 6], [3, 7]]
    for copy in sub.ranks:
        assert np.array_equal(np.sort(copy.ravel()), mesh.group_of(int(copy[0, 0]), "dp"))


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda: fsdp_mesh(Mesh(tp=2, dp=4)), ("2 of its axes", "tp 2, dp 4", "name them: dp")),
        (lambda: fsdp_mesh(Mesh(cp=2, dp=4)), ("2 of its axes", "dp-cp")),
        (lambda: hsdp_mesh(Mesh(tp=2, dp=4, pp=2), 2, 2), ("3 of its axes", "tp 2, dp 4, pp 2")),
        (lambda: fsdp_mesh(Mesh(tp=2, dp=4), ("tp",)), ("shard over tp", "name data axes")),
        (lambda: fsdp_mesh(Mesh(tp=2, dp=4), ("dp", "tp")), ("shard over dp, tp",)),
        (lambda: hsdp_mesh(Mesh(dp=8), 3, 4), ("= 12", "8", "replicate 2 and shard 4")),
        (lambda: hsdp_mesh(Mesh(dp=8), 0, 8), ("= 0", "replicate 1 and shard 8")),
        (lambda: fsdp_mesh(Mesh(dp=8)).groups("replicate"), ("'replicate'", "shard")),
    ],
)
def test_refused_in_one_line_with_a_fix(ask, words):
    with pytest.raises(ShapeError) as caught:
        ask()
    assert caught.value.exit_code == 2
    assert caught.value.fix
    assert "\n" not in str(caught.value)
    assert all(word in str(caught.value) for word in words)
