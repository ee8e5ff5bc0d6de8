"""What a rank holds: Megatron's column, row and vocabulary splits (Shoeybi et al. 2019, section 3)."""

import pytest

from traincast.errors import ShapeError
from traincast.mesh import Mesh, even_layers
from traincast.mesh.holdings import ModelFacts, holdings, weight_shares


def shares(mesh, **facts):
    return {weight.name: weight for weight in weight_shares(mesh, ModelFacts(**facts))}


def test_local_shapes_of_a_split_layer():
    held = shares(Mesh(tp=4), hidden=4096, heads=32, kv_heads=8, ffn_hidden=14336, vocab=128256, gated_mlp=True)
    assert held["attention query"].local == (4096, 1024)
    assert held["attention key"].local == held["attention value"].local == (4096, 256)
    assert held["attention projection"].local == (1024, 4096)
    assert held["mlp up"].local == (4096, 2 * 14336 // 4)
    assert held["mlp down"].local == (14336 // 4, 4096)
    assert held["embedding"].local == (128256 // 4, 4096)
    assert held["norms"].share == "whole"
    assert held["embedding"].share == "1/4"


def test_embedding_on_the_first_stage_and_head_on_the_last():
    mesh = Mesh(tp=2, pp=4, dp=2)
    ranks = holdings(mesh, ModelFacts(split=even_layers(24, 4)))
    for rank, held in enumerate(ranks):
        assert ("embedding" in held.parts) == (rank < 4)
        assert ("head" in held.parts) == (rank >= 12)
        assert held.parts["mlp up"] == (rank % 2, 2)
        assert held.parts["norms"] == (0, 1)
    assert ranks[5].chunks == ((6, 12),)


def test_few_key_heads_are_held_by_several_ranks():
    mesh = Mesh(tp=8)
    ranks = holdings(mesh, ModelFacts(heads=64, kv_heads=2))
    assert [held.parts["attention key"] for held in ranks] == [(rank // 4, 2) for rank in range(8)]
    assert [held.parts["attention query"] for held in ranks] == [(rank, 8) for rank in range(8)]


def test_experts_are_dealt_along_ep_and_cut_along_etp():
    mesh = Mesh(tp=2, dp=4, etp=2, ep=2)
    ranks = holdings(mesh, ModelFacts(experts=8, hidden=64, ffn_hidden=256))
    assert [held.parts["experts"] for held in ranks] == [(0, 2), (0, 2), (1, 2), (1, 2)] * 2
    assert [held.parts["expert mlp up"] for held in ranks] == [(0, 2), (1, 2)] * 4
    assert "mlp up" not in ranks[0].parts
    assert shares(mesh, experts=8)["experts"].local == (4,)


def test_layers_must_lie_on_the_stages():
    with pytest.raises(ShapeError, match="3 chunks"):
        holdings(Mesh(pp=2), ModelFacts(split=(1, 1, 1)))


@pytest.mark.parametrize(
    ("schedule", "first", "last"), [("1f1b", (0,), (3,)), ("zb-v", (0,), (0,)), ("dualpipe", (0, 3), (0, 3))]
)
def test_ends_of_the_model_lie_where_the_schedule_puts_them(
    schedule: str, first: tuple[int, ...], last: tuple[int, ...]
) -> None:
    """A V brings the head back to stage 0 (Qi et al. 2023, section 6); DualPipe has both ends on both (DeepSeek-V3)."""
    from traincast.cli.mesh_schedule import parts_of_stages
    from traincast.cli.mesh_tables import weights_table
    from traincast.mesh.describe import Views, describe

    mesh = Mesh(pp=4)
    views = Views(model=ModelFacts(parts=parts_of_stages(schedule, 4, 1 if schedule == "1f1b" else 2)))
    held = {row["name"]: tuple(row["on_stages"]) for row in describe(mesh, views)["weights"]}
    assert (held["embedding"], held["head"], held["final norm"]) == (first, last, last)
    assert held["norms"] == (0, 1, 2, 3)
    words = {(0,): "first stage", (3,): "last stage", (0, 3): "first and last stages"}
    shown = {row[0]: row[1] for row in weights_table(mesh, views).rows}
    assert (shown["embedding"], shown["head"], shown["norms"]) == (words[first], words[last], "every stage")
