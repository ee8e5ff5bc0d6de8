"""Communicators: the counts of the design's 3072-rank case, and agreement with the groups themselves."""

import pytest

from traincast.mesh import Mesh, count_communicators, families_of, family_groups


def test_the_1008b_shape_makes_4016_groups_and_4528_with_gloo_twins():
    four, full = count_communicators(Mesh(tp=8, pp=64, dp=6))
    assert {one.family: one.groups for one in four.families} == {"dp": 512, "tp": 384, "pp": 48, "cp": 3072}
    assert four.groups == 4016
    assert four.creations == 4528
    assert four.waste == 3072  # cp has size 1
    # beside it: DP-CP 512, model-parallel 6, embedding 48
    assert full.groups == 4016 + 512 + 6 + 48
    # Megatron-Core twins the DP and the DP-CP groups
    assert full.creations == full.groups + 2 * 512


@pytest.mark.parametrize(
    "mesh",
    [
        Mesh(tp=8, pp=64, dp=6),
        Mesh(tp=2, cp=2, dp=4, pp=2, ep=4, etp=2),
        Mesh(tp=2, dp=4, etp=2, ep=2),
        Mesh(pp=2, dp=2),
        Mesh(),
    ],
)
def test_counts_are_those_of_the_groups(mesh):
    _, full = count_communicators(mesh)
    assert {one.family for one in full.families} == {family.name for family in families_of(mesh)}
    for one in full.families:
        assert family_groups(mesh, one.family).shape == (one.groups, one.size)
        if one.same_as is not None:
            assert family_groups(mesh, one.family).tolist() == family_groups(mesh, one.same_as).tolist()


def test_joint_groups_that_repeat_an_axis_are_named():
    _, full = count_communicators(Mesh(tp=2, pp=2, dp=2))
    same = {one.family: one.same_as for one in full.families}
    assert same["dp-cp"] == "dp"
    assert same["embedding"] == "pp"
    assert same["tp-pp"] is None


def test_expert_families_count_only_with_an_expert_mesh():
    assert all(family.kind != "expert" for family in families_of(Mesh(tp=8, dp=8)))
    _, full = count_communicators(Mesh(dp=8, ep=4))
    assert {one.family for one in full.families} >= {"etp", "ep", "edp", "tp-ep"}
