"""Laws of every mesh, on random sizes, orders and placements."""

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from traincast.mesh import (
    DENSE_AXES,
    EXPERT_AXES,
    Mesh,
    balanced_layers,
    count_communicators,
    families_of,
    family_groups,
    fsdp_mesh,
    hsdp_mesh,
    nodes_of_ranks,
    spreads,
)

AXES = ("tp", "cp", "ep", "dp", "pp")
small = st.integers(1, 4)


@st.composite
def meshes(draw):
    """Dense sizes in any order; or an expert mesh too, with pp last, where its stages are the dense ones."""
    sizes = {axis: draw(small) for axis in DENSE_AXES}
    order = list(draw(st.permutations(AXES)))
    world = math.prod(sizes.values())
    if draw(st.booleans()):
        order = [axis for axis in order if axis != "pp"] + ["pp"]
        left = world // sizes["pp"]
        sizes["etp"] = draw(st.sampled_from([d for d in range(1, left + 1) if left % d == 0]))
        left //= sizes["etp"]
        sizes["ep"] = draw(st.sampled_from([d for d in range(1, left + 1) if left % d == 0]))
    needed = {**sizes, "tp": max(sizes["tp"], sizes.get("etp", 1))}
    if max(sizes.get("ep", 1), sizes.get("etp", 1)) > 1:
        needed["dp"] = max(sizes["dp"], left // sizes["ep"])
    named = [axis for axis in order if needed.get(axis, 1) > 1 or draw(st.booleans())] or order
    placement = tuple(draw(st.permutations(range(world)))) if draw(st.booleans()) else None
    return Mesh(**sizes, order="-".join(named), placement=placement)


@given(meshes())
@settings(max_examples=60, deadline=None)
def test_every_family_partitions_the_ranks(mesh):
    for family in families_of(mesh):
        groups = family_groups(mesh, family.name)
        ranks = groups.ravel().tolist()
        assert len(set(ranks)) == len(ranks)
        assert np.array_equal(groups, np.sort(groups, axis=1))
        assert np.array_equal(groups[:, 0], np.sort(groups[:, 0]))
        if family.kind == "embedding":
            assert len(groups) == mesh.world // mesh.pp
            assert set(ranks) <= set(range(mesh.world))
        else:
            assert groups.shape[1] == math.prod(mesh.size(axis) for axis in family.axes)
            assert groups.size == mesh.world
            assert set(ranks) == set(range(mesh.world))


@given(meshes(), st.sets(st.sampled_from(DENSE_AXES)), st.sets(st.sampled_from(EXPERT_AXES)))
@settings(max_examples=60, deadline=None)
def test_members_differ_only_along_their_axes(mesh, dense_axes, expert_axes):
    cases = [(mesh.coordinates(), mesh.groups(*dense_axes), dense_axes)]
    if mesh.has_expert_mesh:
        cases.append((mesh.expert_coordinates(), mesh.expert_groups(*expert_axes), expert_axes))
    for coordinates, groups, axes in cases:
        for axis, column in coordinates.items():
            values = column[groups]
            if axis not in axes:
                assert (values == values[:, :1]).all()
        assert groups.size == mesh.world
        members = np.stack([column[groups] for column in coordinates.values()], axis=-1)
        assert len(np.unique(members.reshape(-1, members.shape[-1]), axis=0)) == mesh.world


@given(meshes())
@settings(max_examples=40, deadline=None)
def test_dense_and_expert_mesh_share_their_stages(mesh):
    if mesh.has_expert_mesh:
        assert np.array_equal(mesh.groups("pp"), mesh.expert_groups("pp"))
        assert mesh.etp * mesh.ep * mesh.edp * mesh.pp == mesh.world


@given(meshes(), st.data())
@settings(max_examples=40, deadline=None)
def test_neighbours_stay_in_their_group_and_come_back(mesh, data):
    rank = data.draw(st.integers(0, mesh.world - 1))
    axis = data.draw(st.sampled_from(DENSE_AXES))
    step = data.draw(st.integers(-5, 5))
    there = mesh.neighbour(rank, axis, step)
    assert there in mesh.group_of(rank, axis)
    assert mesh.neighbour(there, axis, -step) == rank
    assert mesh.neighbour(rank, axis, mesh.size(axis)) == rank


@given(meshes(), meshes())
@settings(max_examples=60, deadline=None)
def test_signatures_are_equal_exactly_for_equal_grids(one, other):
    def grid(mesh):
        dense = [family_groups(mesh, name).tolist() for name in ("tp", "cp", "dp", "pp")]
        strides = [
            (axis, mesh._expert_unchecked.size(axis), mesh._expert_unchecked.stride(axis))
            for axis in EXPERT_AXES
            if mesh.size(axis) > 1
        ]
        return dense, strides, mesh.physical(range(mesh.world)).tolist()

    assert (one.signature() == other.signature()) == (grid(one) == grid(other))
    again = Mesh(one.tp, one.cp, one.pp, one.dp, one.ep, one.etp, one.order, one.placement)
    assert again.signature() == one.signature()


@given(meshes(), st.integers(1, 16))
@settings(max_examples=40, deadline=None)
def test_spread_counts_every_group_and_hop(mesh, gpus_per_node):
    nodes = nodes_of_ranks(mesh, gpus_per_node)
    for one in spreads(mesh, nodes):
        groups = family_groups(mesh, one.family)
        per_group = [np.unique(nodes[group], return_counts=True) for group in groups]
        assert one.groups_in_node + one.groups_across == len(groups)
        assert one.groups_across == sum(len(found) > 1 for found, _ in per_group)
        assert one.most_nodes == max(len(found) for found, _ in per_group)
        assert one.most_ranks_on_a_node == max(int(counts.max()) for _, counts in per_group)


@given(meshes())
@settings(max_examples=40, deadline=None)
def test_counts_need_no_groups(mesh):
    four, full = count_communicators(mesh)
    assert four.groups == sum(len(mesh.groups(axis)) for axis in DENSE_AXES)
    assert full.groups == sum(len(family_groups(mesh, family.name)) for family in families_of(mesh))


@given(meshes())
@settings(max_examples=40, deadline=None)
def test_sub_meshes_hold_every_rank_once(mesh):
    shards = fsdp_mesh(mesh, ("dp", "cp"))
    assert sorted(shards.ranks.ravel().tolist()) == list(range(mesh.world))
    pairs = hsdp_mesh(mesh, mesh.dp, mesh.cp, ("dp", "cp"))
    assert sorted(pairs.groups("replicate").ravel().tolist()) == list(range(mesh.world))
    assert sorted(pairs.groups("shard").ravel().tolist()) == list(range(mesh.world))


@given(st.integers(1, 200), st.integers(1, 16), st.integers(1, 8), st.booleans())
@settings(max_examples=80, deadline=None)
def test_balanced_layers_add_up(layers, pp, vpp, embedding):
    chunks = pp * vpp
    if layers < chunks and (layers + 2) % chunks:
        return
    if layers < chunks and not embedding:
        return
    if layers < chunks and chunks == 1:
        return
    split = balanced_layers(layers, pp, vpp, embedding)
    assert len(split) == chunks
    assert sum(split) == layers
    assert min(split) >= 0
    assert max(split) - min(split) <= (2 if chunks == 1 else 1)
