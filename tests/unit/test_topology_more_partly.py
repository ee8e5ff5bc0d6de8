"""A fabric file that shows some switches only as far ends of cables: what it can tell is found, no more.

A switch with a record of its own is seen whole, one that only its peers' port lines name is seen partly.
"""

import json
from pathlib import Path

import pytest

from traincast.cli.main import main
from traincast.topology import Cluster, load_cluster, make_cluster
from traincast.topology.check import Finding, check_cluster
from traincast.topology.importers import import_texts

LEAVES = 4
"""Leaves with a record; as many again are seen from spine 2 alone, the only spine with a record."""
HOSTS = 6
SPINES = 3


def name(kind: str, number: int) -> str:
    return f"MF0;x-IB{kind}-{number:02d}:MQM9701/U1"


def device(leaf: int, host: int, names: dict[tuple[int, int], str]) -> str:
    return names.get((leaf, host), f"su{leaf}-c{host} HCA-6")


def fabric(
    cut: frozenset[tuple[int, int]] = frozenset(),
    names: dict[tuple[int, int], str] | None = None,
    extra: bool = False,
    empty: int = 0,
) -> str:
    """Two cables from each leaf to each spine, less one for each (leaf, spine) in `cut`, less both for (leaf, -spine).

    `names` describes the adapters of (leaf, host) otherwise; `extra` joins leaf 4 to one more spine, alone. Leaf
    `empty` has a record without a host.
    """
    lines: list[str] = []
    for leaf in range(1, LEAVES + 1):
        lines.append(
            f'Switch\t65 "S-00000000000000a{leaf}"\t\t# "{name("LEAF", leaf)}" enhanced port 0 lid {leaf} lmc 0'
        )
        for host in range(1, HOSTS + 1 if leaf != empty else 1):
            what = device(leaf, host, names or {})
            lines.append(f'[{host}]\t"H-0000000000000{leaf}c{host}"[1](c{host}) \t\t# "{what}" lid {leaf}{host} 4xNDR')
        for spine in range(1, SPINES + 1 + (extra and leaf == LEAVES)):
            for cable in range(cables(cut, leaf, spine)):
                lines.append(
                    f'[{30 + 2 * spine + cable}]\t"S-00000000000000b{spine}"[{2 * leaf + cable}]\t\t'
                    f'# "{name("SPINE", spine)}" lid 8{spine} 4xNDR'
                )
        lines.append("")
    lines.append(f'Switch\t65 "S-00000000000000b2"\t\t# "{name("SPINE", 2)}" enhanced port 0 lid 82 lmc 0')
    for leaf in range(1, 2 * LEAVES + 1):
        for cable in range(cables(cut, leaf, 2)):
            end = f'"S-00000000000000a{leaf}"[{34 + cable}]\t\t# "{name("LEAF", leaf)}" lid {leaf} 4xNDR'
            lines.append(f"[{2 * leaf + cable}]\t{end}")
    return "\n".join(lines) + "\n"


def cables(cut: frozenset[tuple[int, int]], leaf: int, spine: int) -> int:
    return 2 - ((leaf, spine) in cut) - 2 * ((leaf, -spine) in cut)


def findings(text: str) -> tuple[Finding, ...]:
    return check_cluster(import_texts([("f.txt", text)]).cluster)


def errors(text: str) -> list[tuple[str, str]]:
    return [(one.what, one.part) for one in findings(text) if one.severity == "error"]


def test_leaves_seen_in_part_are_not_judged_by_the_others() -> None:
    """Leaves 5 to 8 have the 2 cables that spine 2 shows, of 6: one remark for all, and no error."""
    (one,) = findings(fabric())
    assert (one.severity, one.what, one.part) == ("note", "not judged", name("LEAF", 5))
    assert one.message == "4 leaves are shown only as far ends of cables: not judged by the 4 shown whole"


def unsaid(cluster: Cluster) -> Cluster:
    """The cluster as a file has it that does not say how its switches were seen."""
    graph = cluster.graph.copy()
    for data in dict(graph.nodes(data=True)).values():
        data.pop("seen", None)
    return make_cluster(cluster.name, graph)


def test_where_nobody_says_how_they_were_seen() -> None:
    """Leaves without a NIC are then taken for such as long as they all have fewer cables."""
    (one,) = check_cluster(unsaid(import_texts([("f.txt", fabric())]).cluster))
    assert (one.severity, one.what) == ("note", "not judged")
    assert one.message == "4 leaves without a NIC have fewer uplinks than the 4 with: not judged by these"
    assert not check_cluster(unsaid(import_texts([("f.txt", whole_fabric(empty=3))]).cluster))


def whole_fabric(empty: int = 0) -> str:
    """The same without leaves 5 to 8: every leaf has a record."""
    return "\n".join(line for line in fabric(empty=empty).splitlines() if not any(f"LEAF-0{n}" in line for n in "5678"))


def test_a_leaf_seen_whole_without_a_nic_is_an_error() -> None:
    """Its record lists six cables up and no host; a leaf that the file shows in part is a remark instead."""
    (one,) = findings(whole_fabric(empty=3))
    assert (one.severity, one.what, one.part) == ("error", "empty leaf", name("LEAF", 3))
    assert one.message == f"{name('LEAF', 3)} has no NIC, the other leaves have 6"
    assert one.loss == "its uplinks (300 GB/s) carry nothing, and NICs meant for it reach nobody"
    assert errors(fabric(empty=3)) == [("empty leaf", name("LEAF", 3))]
    assert findings(whole_fabric()) == ()


def test_an_empty_leaf_is_judged_by_the_whole_ones() -> None:
    """Leaf 3 has no host and lacks both cables to spine 3: it is held against the leaves with six."""
    found = errors(fabric(frozenset({(3, -3)}), empty=3))
    assert found == [("missing cable", name("LEAF", 3)), ("empty leaf", name("LEAF", 3))]


def test_how_switches_were_seen_is_kept_in_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, path = tmp_path / "f.txt", tmp_path / "x.yaml"
    source.write_text(fabric(empty=3), encoding="utf-8")
    assert main(["topology", "import", str(source), "-o", str(path)]) == 0
    cluster = load_cluster(str(path))
    seen = {key: data["seen"] for key, data in cluster.graph.nodes(data=True) if "seen" in data}
    partly = {name("LEAF", leaf) for leaf in range(5, 9)} | {name("SPINE", 1), name("SPINE", 3)}
    assert {key for key, said in seen.items() if said == "partly"} == partly
    assert len(seen) == 2 * LEAVES + SPINES
    capsys.readouterr()
    assert main(["topology", "check", str(path), "--format", "json"]) == 1
    payload = json.loads(capsys.readouterr().out)
    assert (payload["errors"], payload["warnings"], payload["notes"]) == (1, 0, 1)


def test_seen_belongs_to_switches(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, path = tmp_path / "f.txt", tmp_path / "x.yaml"
    source.write_text(fabric(), encoding="utf-8")
    assert main(["topology", "import", str(source), "-o", str(path)]) == 0
    text = path.read_text(encoding="utf-8")
    for wrong, words in (
        (text.replace("seen: whole", "seen: halfway", 1), "seen"),
        (text.replace("    kind: gpu\n", "    kind: gpu\n    seen: whole\n", 1), "state it for switches only"),
    ):
        assert wrong != text
        path.write_text(wrong, encoding="utf-8")
        capsys.readouterr()
        assert main(["topology", "check", str(path)]) == 2
        assert words in capsys.readouterr().err


def test_a_cable_that_the_spine_lacks() -> None:
    """Of the leaves seen from spine 2, one has 1 cable of 2: half of what its like have."""
    one = findings(fabric(frozenset({(7, 2)})))[0]
    assert (one.what, one.part) == ("missing cable", name("LEAF", 7))
    assert "has 1 uplinks, its like have 2 (shown only as far ends of cables, compared" in one.message
    assert one.loss == "groups that leave it share 50.0 GB/s of 100 GB/s (-50 %)"


def test_leaves_seen_in_part_are_no_majority() -> None:
    """Leaf 2 lacks both cables to spine 3; the four whole leaves alone say so."""
    one = findings(fabric(frozenset({(2, -3)})))[0]
    assert (one.what, one.part) == ("missing cable", name("LEAF", 2))
    assert one.loss == "groups that leave it share 200 GB/s of 300 GB/s (-33.3 %)"


def test_no_majority_of_totals_but_one_for_each_spine() -> None:
    """4, 6, 6 and 8 cables: leaf 2 lacks those to spine 3, that leaf 4 has spine 4 to itself is nobody's fault."""
    one, *rest = findings(fabric(frozenset({(2, -3)}), extra=True))
    assert one.message == f"{name('LEAF', 2)} has 4 uplinks, its like have 6: fewer to {name('SPINE', 3)}"
    assert one.loss == "groups that leave it share 200 GB/s of 300 GB/s (-33.3 %)"
    assert [other.what for other in rest] == ["not judged"]


def test_the_rate_is_that_of_switches_with_the_meant_number() -> None:
    """Leaf 4 has 8 cables, 400 GB/s; the leaf that lacks one is held against the 300 GB/s of the 6 that are meant."""
    one = findings(fabric(frozenset({(1, 3)}), extra=True))[0]
    assert one.loss == "groups that leave it share 250 GB/s of 300 GB/s (-16.7 %)"


def test_rails_are_the_numbers_of_adapters() -> None:
    """HCA-5 among HCA-6 is wrong; a nameless adapter and one that is counted in another way tell nothing."""
    names = {
        (3, 1): "su3-c1 HCA-5",
        (3, 2): "MT4129 ConnectX7   Mellanox Technologies",
        (1, 1): "ubuntu mlx5_1",
        (2, 4): "MT4129 ConnectX7   Mellanox Technologies",
    }
    text = fabric(names=names)
    assert [what for what, _ in errors(text)] == ["wrong rail"]
    one = findings(text)[0]
    assert one.part.endswith("/nic5")
    assert f"of rail 5 is on {name('LEAF', 3)}, which carries rail 6" in one.message


def test_a_host_with_one_adapter_shown() -> None:
    """Hosts on leaf 1 (HCA-1) and leaf 2 (HCA-6); one is seen with HCA-6 alone, one HCA-1 hangs on the wrong leaf."""
    names = {
        (leaf, host): f"su1-c{host} HCA-{6 if leaf == 2 else 1}" for leaf in (1, 2) for host in range(1, HOSTS + 1)
    }
    names[2, 6] = "su1-c9 HCA-6"
    assert errors(fabric(names=names)) == []
    names[2, 6] = "su1-c9 HCA-1"
    assert [what for what, _ in errors(fabric(names=names))] == ["wrong rail"]


def test_the_same_after_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, path = tmp_path / "f.txt", tmp_path / "x.yaml"
    source.write_text(fabric(frozenset({(2, -3), (7, 2)}), {(3, 1): "su3-c1 HCA-5"}, extra=True), encoding="utf-8")
    assert main(["topology", "import", str(source), "-o", str(path)]) == 0
    capsys.readouterr()
    assert main(["topology", "check", str(path), "--format", "csv"]) == 1
    said = capsys.readouterr().out
    assert [said.count(word) for word in ("wrong rail,", "missing cable,", "note,not judged,")] == [1, 2, 1]
