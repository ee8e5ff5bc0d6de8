"""Damaged topology files never end in a traceback: they import with problems listed, or are refused with a place.

Each file of tests/data/topology is mangled in the same way in every run (seeded by its name): lines are deleted,
doubled, swapped and cut, characters are flipped, junk bytes are put in, the file is cut at either end.
"""

import random
from pathlib import Path

import networkx as nx
import pytest

from traincast.errors import TraincastError
from traincast.topology import load_cluster
from traincast.topology.importers import Imported, cluster_yaml, import_bytes

DATA = Path(__file__).parent.parent / "data" / "topology"
FILES = sorted(path.name for path in DATA.iterdir())
EACH = 2400 // len(FILES) + 1
FLIPS = b'0123456789-[]"<>/ GXNSa:,=#\t\\{}&*!%\xff\x00\x1b'


def mangled(data: bytes, rng: random.Random) -> bytes:
    """One to four kinds of damage."""
    lines = data.split(b"\n")
    for _ in range(rng.randint(1, 4)):
        place, other = rng.randrange(len(lines)), rng.randrange(len(lines))
        line, kind = lines[place], rng.randrange(8)
        cut = rng.randrange(len(line) + 1)
        if kind == 0:
            del lines[place]
        elif kind == 1:
            lines.insert(place, lines[other])
        elif kind == 2:
            lines[place], lines[other] = lines[other], line
        elif kind == 3:
            lines[place] = line[:cut]
        elif kind == 4 and line:
            flipped = bytearray(line)
            for _ in range(rng.randint(1, 3)):
                flipped[rng.randrange(len(line))] = rng.choice(FLIPS)
            lines[place] = bytes(flipped)
        elif kind == 5:
            lines[place] = line[:cut] + bytes(rng.randrange(256) for _ in range(rng.randint(1, 6))) + line[cut:]
        elif kind == 6:
            lines = lines[: place + 1]
        elif kind == 7:
            lines = lines[place:]
        lines = lines or [b""]
    return b"\n".join(lines)


def outcome(name: str, data: bytes) -> Imported | TraincastError:
    """What an import ends in; anything but one of our errors fails the test."""
    try:
        return import_bytes([(name, data)])
    except TraincastError as error:
        return error


@pytest.mark.parametrize("name", FILES)
def test_no_traceback(name: str, tmp_path: Path) -> None:
    """Every error is one of ours and says file and line, or file; some of what imports is written and loaded again."""
    data = (DATA / name).read_bytes()
    rng = random.Random(name)
    imported = 0
    for number in range(EACH):
        damaged = mangled(data, rng)
        found = outcome(name, damaged)
        if isinstance(found, TraincastError):
            assert found.exit_code == 2
            assert found.where is not None
            assert found.where.startswith(name), found
            assert found.fix
            continue
        imported += 1
        if imported % 30 == 1:
            path = tmp_path / f"{number}.yaml"
            path.write_text(cluster_yaml(found), encoding="utf-8")
            assert nx.utils.graphs_equal(load_cluster(str(path)).graph, found.cluster.graph)


def test_enough_of_them() -> None:
    assert EACH * len(FILES) >= 2000
