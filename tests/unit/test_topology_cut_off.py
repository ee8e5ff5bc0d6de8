"""A leaf with all its uplinks cut: the error says which, where the file says so, and what helps."""

from pathlib import Path

import numpy as np
import pytest

from traincast.errors import TopologyError
from traincast.topology import Change, degraded, family_spans, load_cluster, selene, span

CUT = """\
builder: fat_tree
nodes: 4
node: {gpu: A100-80GB-SXM, gpus: 8, nics: 8, nic: HDR200-IB}
fabric: {levels: 2, nodes_per_unit: 2}
degraded: [{leaf: su0/leaf3, uplinks_cut: 2}]
"""


def test_the_leaf_the_place_and_the_fix_are_named(tmp_path: Path) -> None:
    path = tmp_path / "cut.yaml"
    path.write_text(CUT)
    cluster = load_cluster(str(path))
    rails = np.arange(32).reshape(4, 8).T
    with pytest.raises(TopologyError) as caught:
        family_spans(cluster, rails)
    assert "su0/leaf3 has no uplink, but groups of nodes 0-1 have ranks elsewhere" in str(caught.value)
    assert str(caught.value).startswith(f"{path}:5:12: ")
    assert "absent_nodes: [0-1]" in str(caught.value)
    path.write_text(f"{CUT}absent_nodes: [0-1]\n")
    assert span(load_cluster(str(path)), [0, 8]).tier == "leaf"


def test_groups_that_do_not_pass_it_are_as_they_were(tmp_path: Path) -> None:
    path = tmp_path / "cut.yaml"
    path.write_text(CUT)
    cluster = load_cluster(str(path))
    assert span(cluster, [3, 11]).tier == "leaf"
    assert span(cluster, [4, 20]).tier == "spine"


def test_spines_without_a_core() -> None:
    """Pods that no core joins: the spines are named by the leaf below them."""
    whole = selene(280)
    spines = {key for key in whole.graph["su0/leaf0"] if whole.graph.nodes[key]["kind"] == "spine"}
    ups = {key: sum(e["links"] for o, e in whole.graph[key].items() if o.startswith("core")) for key in spines}
    cut = degraded(whole, [Change("cut_uplinks", key, count=count) for key, count in ups.items()])
    with pytest.raises(TopologyError, match="the spines above su0/leaf0 have no uplink, but groups of nodes 0-19 "):
        span(cut, [0, 8 * 200])
