"""Rank sets against PyTorch's DeviceMesh (fake process group, CPU) and Megatron-Core's rank generator.

Optional: `pip install torch` and `pip install --no-deps megatron-core`. Shapes and orders are random, seeded.
"""

import random
import warnings

import pytest

from traincast.mesh import Mesh

pytestmark = pytest.mark.oracle

AXES = ("tp", "cp", "ep", "dp", "pp")
SHAPES = 24


def random_meshes(seed, experts):
    """`SHAPES` meshes in random orders; those with experts have pp last, as Megatron-Core wants it."""
    draw = random.Random(seed)
    found = []
    while len(found) < SHAPES:
        sizes = {axis: draw.choice((1, 2, 2, 3, 4)) for axis in ("tp", "cp", "dp", "pp")}
        order = draw.sample(AXES, len(AXES))
        if experts:
            order = [axis for axis in order if axis != "pp"] + ["pp"]
            left = sizes["tp"] * sizes["cp"] * sizes["dp"]
            sizes["etp"] = draw.choice([d for d in (1, 2, 4) if left % d == 0])
            sizes["ep"] = draw.choice([d for d in (1, 2, 3, 4, 8) if left // sizes["etp"] % d == 0])
            if sizes["ep"] == sizes["etp"] == 1:
                continue
        found.append(Mesh(**sizes, order="-".join(order)))
    return found


def ids(mesh):
    return f"tp{mesh.tp}cp{mesh.cp}dp{mesh.dp}pp{mesh.pp}ep{mesh.ep}etp{mesh.etp}:{mesh.order}"


@pytest.fixture(scope="module")
def parallel_state():
    pytest.importorskip("torch", reason="PyTorch is not installed")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from megatron.core import parallel_state
    except Exception as error:
        pytest.skip(f"Megatron-Core is not installed, or does not import: {error}")
    return parallel_state


@pytest.fixture(scope="module")
def distributed():
    pytest.importorskip("torch", reason="PyTorch is not installed")
    import torch.distributed as dist

    if not dist.is_available():
        pytest.skip("PyTorch without distributed")
    try:
        from torch.testing._internal.distributed.fake_pg import FakeStore
    except ImportError as error:
        pytest.skip(f"this PyTorch has no fake process group: {error}")
    return dist, FakeStore


@pytest.mark.parametrize("mesh", random_meshes(1, experts=False), ids=ids)
def test_dense_groups_are_megatrons(parallel_state, mesh):
    generator = parallel_state.RankGenerator(tp=mesh.tp, ep=1, dp=mesh.dp, pp=mesh.pp, cp=mesh.cp, order=mesh.order)
    for token in ("tp", "cp", "dp", "pp", "dp-cp", "tp-pp", "tp-cp", "tp-dp-cp"):
        assert sorted(generator.get_ranks(token)) == mesh.groups(*token.split("-")).tolist()
    embedding = [parallel_state.default_embedding_ranks(ranks) for ranks in generator.get_ranks("pp")]
    assert sorted(embedding) == mesh.embedding_groups().tolist()


@pytest.mark.parametrize("mesh", random_meshes(2, experts=True), ids=ids)
def test_expert_groups_are_megatrons(parallel_state, mesh):
    generator = parallel_state.RankGenerator(tp=mesh.etp, ep=mesh.ep, dp=mesh.edp, pp=mesh.pp, cp=1, order=mesh.order)
    names = {"tp": "etp", "ep": "ep", "dp": "edp", "pp": "pp"}
    for token in ("tp", "ep", "dp", "pp", "tp-ep", "tp-ep-pp"):
        axes = [names[axis] for axis in token.split("-")]
        assert sorted(generator.get_ranks(token)) == mesh.expert_groups(*axes).tolist()


def test_the_3072_rank_case_is_megatrons(parallel_state):
    mesh = Mesh(tp=8, pp=64, dp=6)
    generator = parallel_state.RankGenerator(tp=8, ep=1, dp=6, pp=64, cp=1, order=mesh.order)
    for token in ("tp", "cp", "dp", "pp", "dp-cp", "tp-pp"):
        assert generator.get_ranks(token) == mesh.groups(*token.split("-")).tolist()


def torch_groups(distributed, rank, grid, joint):
    """What a DeviceMesh of the grid's shape gives `rank`: its group along each axis, and along `joint`."""
    dist, fake_store = distributed
    from torch.distributed.device_mesh import init_device_mesh

    names, sizes = tuple(reversed(grid.names)), tuple(reversed(grid.sizes))
    dist.init_process_group("fake", store=fake_store(), rank=rank, world_size=grid.world)
    try:
        device_mesh = init_device_mesh("cpu", sizes, mesh_dim_names=names)
        groups = {(name,): sorted(dist.get_process_group_ranks(device_mesh.get_group(name))) for name in names}
        named = tuple(name for name in names if name in joint)
        flat = device_mesh[named]._flatten("joint")
        groups[joint] = sorted(dist.get_process_group_ranks(flat.get_group()))
    finally:
        dist.destroy_process_group()
    return groups


@pytest.mark.parametrize("mesh", random_meshes(3, experts=False), ids=ids)
def test_dense_groups_are_device_meshs(distributed, mesh):
    for rank in {0, mesh.world - 1, 7 * mesh.world // 11}:
        for axes, ranks in torch_groups(distributed, rank, mesh.dense, ("dp", "cp")).items():
            assert mesh.group_of(rank, *axes).tolist() == ranks
            assert ranks in mesh.groups(*axes).tolist()


@pytest.mark.parametrize("mesh", random_meshes(4, experts=True)[:8], ids=ids)
def test_expert_groups_are_device_meshs(distributed, mesh):
    rank = 5 * mesh.world // 7
    for axes, ranks in torch_groups(distributed, rank, mesh.expert, ("etp", "ep")).items():
        assert mesh.expert_group_of(rank, *axes).tolist() == ranks


def test_hsdp_pair_is_device_meshs(distributed):
    # dimension 0 of the documented 2 x 4 mesh replicates: (0,4), (1,5), (2,6), (3,7)
    from traincast.mesh import Grid, hsdp_mesh

    pair = hsdp_mesh(Mesh(dp=8), replicate=2, shard=4)
    groups = torch_groups(distributed, 6, Grid(("shard", "replicate"), (4, 2)), ("shard", "replicate"))
    assert groups["replicate",] == [2, 6]
    assert groups["replicate",] in pair.groups("replicate").tolist()
    assert groups["shard",] in pair.groups("shard").tolist()
