"""Groups of the microbenchmark suite: they must be those of the simulator's mesh, which states the rules."""

import random

import pytest
from suite.groups import (
    FAMILIES,
    Shape,
    ShapeError,
    created_families,
    default_sizes,
    families_text,
    family_groups,
    group_of,
    measured_families,
    pair_rounds,
    shape_of,
)

from traincast.mesh import Mesh
from traincast.mesh import family_groups as mesh_groups

AXES = ("tp", "cp", "ep", "dp", "pp")


def random_shapes(count):
    """Shapes in random orders; those with experts have pp last, as the simulator's mesh wants it."""
    draw = random.Random(4)
    found = []
    while len(found) < count:
        sizes = {axis: draw.choice((1, 2, 2, 3, 4)) for axis in ("tp", "cp", "dp", "pp")}
        order = draw.sample(AXES, len(AXES))
        if draw.random() < 0.6:
            order = [axis for axis in order if axis != "pp"] + ["pp"]
            left = sizes["tp"] * sizes["cp"] * sizes["dp"]
            sizes["etp"] = draw.choice([n for n in (1, 2, 4) if left % n == 0])
            sizes["ep"] = draw.choice([n for n in (1, 2, 3, 4, 8) if left // sizes["etp"] % n == 0])
        found.append(Shape(**sizes, order="-".join(order)))
    return found


@pytest.mark.parametrize("shape", random_shapes(40), ids=Shape.text)
def test_groups_are_those_of_the_mesh(shape):
    """DESIGN 3: strides by the order, the dense and the expert mesh over the same ranks."""
    mesh = Mesh(tp=shape.tp, cp=shape.cp, pp=shape.pp, dp=shape.dp, ep=shape.ep, etp=shape.etp, order=shape.order)
    experts = shape.ep > 1 or shape.etp > 1
    for family in FAMILIES:
        if not experts and family in ("ep", "etp", "edp", "tp-ep"):
            continue
        assert family_groups(shape, family) == tuple(map(tuple, mesh_groups(mesh, family).tolist())), family


def test_worked_cases():
    """DESIGN 3: 16 ranks TP2 PP4 DP2, and 8 ranks with an expert mesh of ETP2 EP2 EDP2."""
    shape = shape_of(16, {"tp": 2, "pp": 4}, "tp-cp-ep-dp-pp")
    assert family_groups(shape, "pp")[1] == (1, 5, 9, 13)
    assert family_groups(shape, "dp")[:2] == ((0, 2), (1, 3))
    experts = shape_of(8, {"tp": 2, "dp": 4, "ep": 2, "etp": 2}, "tp-cp-ep-dp-pp")
    assert family_groups(experts, "ep") == ((0, 2), (1, 3), (4, 6), (5, 7))
    assert family_groups(experts, "tp-ep") == ((0, 1, 2, 3), (4, 5, 6, 7))


def test_families_to_measure_are_wide_and_different():
    """No family of singletons, none whose groups another family has: nothing is measured twice."""
    for shape in random_shapes(20):
        families = measured_families(shape)
        assert next(iter(families)) == "world"
        assert len(set(families.values())) == len(families)
        assert all(len(groups[0]) > 1 for name, groups in families.items() if name != "world")
        for rank in range(shape.world):
            assert all(rank in groups[group_of(groups, rank)] for groups in families.values() if group_of(groups, rank))


def test_a_family_with_the_groups_of_another_one_is_named_beside_it():
    shape = shape_of(8, {"tp": 2, "ep": 2}, "tp-cp-ep-dp-pp")
    assert families_text(shape) == "world, tp, dp, dp-cp = dp, tp-pp = tp, ep = tp, edp = dp, tp-ep = tp"


def test_families_to_create_count_singletons_too():
    """DESIGN 3: the four families of TP8 PP64 DP6 are 4016 groups, singletons of CP among them."""
    families = created_families(shape_of(3072, {"tp": 8, "pp": 64, "dp": 6}, "tp-cp-ep-dp-pp"))
    assert sum(len(families[name]) for name in ("dp", "tp", "pp", "cp")) == 4016


@pytest.mark.parametrize("world", [2, 3, 4, 5, 8, 9])
def test_pairs_give_each_rank_its_neighbours(world):
    """Law: within a round nobody is in two pairs; over both, every two neighbours meet once."""
    rounds = pair_rounds(world)
    for pairs in rounds:
        ranks = [rank for pair in pairs for rank in pair]
        assert len(ranks) == len(set(ranks))
    met = {frozenset(pair) for pairs in rounds for pair in pairs}
    assert {frozenset((rank, rank + 1)) for rank in range(world - 1)} <= met


@pytest.mark.parametrize(
    ("world", "sizes", "order", "what"),
    [
        (8, {"tp": 3}, "tp-cp-ep-dp-pp", "8 ranks are no multiple of tp\\*cp\\*pp = 3"),
        (8, {"tp": 2, "dp": 2}, "tp-cp-ep-dp-pp", "tp\\*cp\\*pp\\*dp = 4, but 8 ranks run"),
        (8, {"ep": 3}, "tp-cp-ep-dp-pp", "8 ranks are no multiple of ep\\*etp\\*pp = 3"),
        (8, {"tp": 2}, "tp-tp-pp", "no permutation"),
        (8, {"tp": 0}, "tp-cp-ep-dp-pp", "below 1"),
        (16, {"tp": 4, "pp": 2, "ep": 4}, "tp-pp-cp-ep-dp", "put pp last"),
    ],
)
def test_shapes_that_cannot_be(world, sizes, order, what):
    with pytest.raises(ShapeError, match=what):
        shape_of(world, sizes, order)


@pytest.mark.parametrize(
    ("world", "per_node", "tp"), [(1, 1, 1), (2, 2, 1), (4, 4, 2), (8, 8, 4), (64, 8, 8), (6, 2, 2)]
)
def test_a_run_that_names_no_mesh_gets_one(world, per_node, tp):
    """Tensor parallelism inside the node, data parallelism over what is left."""
    shape = shape_of(world, default_sizes(world, per_node), "tp-cp-ep-dp-pp")
    assert (shape.tp, shape.dp) == (tp, world // tp)
