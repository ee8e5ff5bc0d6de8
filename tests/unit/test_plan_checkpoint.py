"""Checkpoints: what is written by whom, closed forms, and SC21's trillion-parameter model."""

from dataclasses import replace

import pytest

from traincast.forecast import prepare
from traincast.lower import Job
from traincast.mesh import Mesh
from traincast.model import total_parameters
from traincast.plan.checkpoint import Checkpoint, Storage, bytes_per_parameter, checkpoint
from traincast.scenario import load_scenario

SC21_BYTES = 13.8e12
"""Narayanan et al. 2021 (SC21), §5.10."""


@pytest.fixture(scope="module")
def trillion() -> Job:
    """SC21's 1T model as it ran: TP8 PP64 DP6, nothing sharded."""
    return prepare(load_scenario("sc21/t1_1008b")).job


@pytest.fixture(scope="module")
def plain() -> Job:
    """The 18.4B model on 64 GPUs, every rank a replica."""
    job = prepare(load_scenario("sc21/t1_18p4b", [("parallelism.dp", "8")])).job
    return replace(job, mesh=Mesh(dp=64))


def on(job: Job, mesh: Mesh | None = None, **fields: object) -> Job:
    recipe = replace(job.recipe, schedule="1f1b" if mesh and mesh.pp > 1 else "none", **fields)  # type: ignore[arg-type]
    return replace(job, mesh=mesh or job.mesh, recipe=recipe)


def test_one_replica_writes_14_bytes_a_parameter(plain: Job) -> None:
    """Half-precision parameter (2), single-precision copy, two moments (4 each): Rajbhandari et al. 2020, §3.1."""
    found = checkpoint(plain)
    assert found.files == 1
    assert found.size_bytes == 14 * total_parameters(plain.model) == found.largest_file_bytes
    assert (bytes_per_parameter(plain), bytes_per_parameter(on(plain, precision="fp32"))) == (14, 12)


def test_sc21_trillion_parameters(trillion: Job) -> None:
    """512 files of together 14 bytes a parameter, and the tied embedding's second copy on the last stage."""
    found = checkpoint(trillion)
    assert found.files == 8 * 64
    assert found.nodes == 64
    assert 14.0 <= found.size_bytes / total_parameters(trillion.model) <= 14.03


@pytest.mark.xfail(
    reason="14.14 TB, 2.4 % above SC21's 13.8 TB: 1,008 billion parameters at 14 bytes are 14.11 TB; 13.8 TB would be"
    " 13.7 bytes a parameter, which no set of states has. Read as 13.8 billion KiB it is exact (next test)",
    strict=True,
)
def test_sc21_size_within_a_percent(trillion: Job) -> None:
    """SC21 §5.10: the checkpoint of the 1T model is 13.8 TB."""
    assert checkpoint(trillion).size_bytes == pytest.approx(SC21_BYTES, rel=0.01)


def test_sc21_size_is_13_8_billion_kib(trillion: Job) -> None:
    """SC21 §5.10 says 13.8 TB; at 14 bytes a parameter that is what du counts, in blocks of 1 KiB: 13.8 billion."""
    assert checkpoint(trillion).size_bytes / 1024 == pytest.approx(13.8e9, rel=0.001)


def test_each_replica_of_a_node_apart_reads_all(trillion: Job) -> None:
    """SC21 §5.10: all 384 nodes load at 1 TB/s; the six replicas share no node."""
    found = checkpoint(trillion, Storage(1e12, 1e12))
    assert found.read_bytes == pytest.approx(6 * found.size_bytes, rel=1e-12)
    assert found.load_s == pytest.approx(6 * found.size_bytes / 1e12, rel=1e-12)
    assert found.save_s == pytest.approx(found.size_bytes / 1e12, rel=1e-12)


@pytest.mark.parametrize(
    ("mesh", "fields", "files"),
    [
        (Mesh(dp=64), {"zero_stage": 0}, 1),
        (Mesh(dp=64), {"zero_stage": 1}, 64),
        (Mesh(dp=64), {"zero_stage": 3}, 64),
        (Mesh(dp=64), {"zero_stage": 3, "fsdp_shard": 8}, 8),
        (Mesh(tp=8, dp=8), {"zero_stage": 0}, 8),
        (Mesh(tp=8, dp=8), {"zero_stage": 3}, 64),
        (Mesh(pp=8, dp=8), {"zero_stage": 3}, 64),
        (Mesh(tp=4, pp=2, dp=8), {"zero_stage": 1}, 64),
        (Mesh(tp=4, pp=2, dp=8), {"zero_stage": 1, "fsdp_shard": 2}, 16),
        (Mesh(cp=2, dp=32), {"zero_stage": 3}, 64),
    ],
)
def test_a_file_for_each_distinct_share(plain: Job, mesh: Mesh, fields: dict[str, int], files: int) -> None:
    """tp x pp x ranks that share states; one replica writes. The rule names these numbers."""
    found = checkpoint(on(plain, mesh, **fields))
    assert found.files == files
    for axis in ("tp", "pp"):
        assert (f"{axis} {mesh.size(axis)}" in found.rule) == (mesh.size(axis) > 1)
    if fields["zero_stage"]:
        assert f"shard {fields.get('fsdp_shard', mesh.dp * mesh.cp)}" in found.rule


def test_sharding_moves_bytes_and_adds_none(plain: Job) -> None:
    """ZeRO spreads the same bytes over more files: largest 14, 2 + 12/n, 14/n bytes a parameter."""
    size = 14 * total_parameters(plain.model)
    found = {stage: checkpoint(on(plain, zero_stage=stage)) for stage in (0, 1, 2, 3)}
    assert {stage: one.size_bytes for stage, one in found.items()} == {stage: pytest.approx(size) for stage in found}
    largest = {0: 14.0, 1: 2 + 12 / 64, 2: 2 + 12 / 64, 3: 14 / 64}
    for stage, each in largest.items():
        assert found[stage].largest_file_bytes == pytest.approx(each * size / 14)


def test_cutting_the_model_adds_copies_only(plain: Job) -> None:
    """TP repeats norms, positions and row biases; PP the tied embedding: less than 2 % together."""
    whole = checkpoint(plain).size_bytes
    for mesh in (Mesh(tp=8, dp=8), Mesh(pp=8, dp=8), Mesh(tp=2, pp=4, dp=8)):
        assert whole <= checkpoint(on(plain, mesh)).size_bytes < 1.02 * whole


def both(found: Checkpoint) -> tuple[float, float]:
    return found.save_s, found.load_s


def test_times_are_those_of_the_slower_of_file_system_and_node(plain: Job) -> None:
    """DDP: one rank writes all, eight nodes read all. FSDP: each node writes and reads an eighth."""
    size = 14.0 * total_parameters(plain.model)
    sharded = on(plain, zero_stage=3)
    slow, narrow = Storage(10e9, 10e9), Storage(1e12, 10e9)
    assert both(checkpoint(plain, slow)) == pytest.approx((size / 10e9, 8 * size / 10e9))
    assert both(checkpoint(plain, narrow)) == pytest.approx((size / 10e9, size / 10e9))
    assert both(checkpoint(sharded, slow)) == pytest.approx((size / 10e9, size / 10e9))
    assert both(checkpoint(sharded, narrow)) == pytest.approx((size / 80e9, size / 80e9))


def test_replicas_of_shard_groups_read_all_and_one_writes(plain: Job) -> None:
    """HSDP over nodes: the first node writes, each of the eight reads everything."""
    found = checkpoint(on(plain, zero_stage=3, fsdp_shard=8))
    assert found.nodes == 1
    assert found.read_bytes == pytest.approx(8 * found.size_bytes)
