"""Hashed links at scale: the work grows with classes and links, not with GPUs. Counts, no seconds."""

from pathlib import Path
from typing import Any

import pytest

from traincast.engine import simulate
from traincast.forecast import prepare
from traincast.lower import Lowered, lower, wires
from traincast.lower.flows import Contention
from traincast.scenario import load_scenario
from traincast.topology.links import Spread

LLAMA = """\
model: llama3-405b
cluster: llama3_24k
parallelism: {tp: 8, pp: 16, dp: 128, order: tp-pp-dp, sequence_parallel: true}
training:
  {global_batch: 2048, microbatch: 1, sequence: 8192, recompute: selective, zero_stage: 1, stage_layers: balanced}
"""


def lowered(path: Path, dp: int) -> Lowered:
    shape = [("parallelism.dp", str(dp)), ("training.global_batch", str(16 * dp))]
    return lower(prepare(load_scenario(path, shape)).job, contention=Contention(Spread("ecmp")))


def test_16384_gpus_have_as_many_classes_as_2048(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 16,384 ranks that a hash tells apart 16 classes are left, one a stage as under ideal routing, and about as
    many events as there; every rank by itself is 1.8 million. Comparisons of links grow with kinds of links."""
    path = tmp_path / "llama.yaml"
    path.write_text(LLAMA)
    compared: list[int] = []
    plain = wires._dominates

    def counted(*args: Any) -> bool:
        compared.append(1)
        return plain(*args)

    monkeypatch.setattr(wires, "_dominates", counted)
    found = {}
    for dp in (16, 128):
        one = lowered(path, dp)
        assert one.paced
        assert len(one.program.classes) == 16
        found[dp] = simulate(one.program).events, len(compared)
        compared.clear()
    assert found[128][0] < 1.3 * found[16][0] < 2500
    assert found[128][1] < 40_000
