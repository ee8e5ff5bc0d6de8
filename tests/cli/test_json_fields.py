"""What scenarios/README.md says of the JSON is there in the JSON."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from traincast.catalog import data_dir
from traincast.scenario import load_scenario
from traincast.schedule import ANY_CHUNKS, SCHEDULES, TWO_CHUNKS

README = (data_dir() / "scenarios" / "README.md").read_text(encoding="utf-8")
_ROW = re.compile(r"^\| (?P<fields>`[^|]*) \| (?P<of>[a-z, ]+) \|", re.M)


def told(command: str) -> Iterator[tuple[str, ...]]:
    """The fields of a command that the table names, each as its path; `a.b`, `c` is a.b and a.c."""
    section = README.partition("## What the JSON says")[2]
    for row in _ROW.finditer(section):
        if command in row["of"].split(", "):
            before: list[str] = []
            for name in re.findall(r"`([\w.\[\]]+)`", row["fields"]):
                path = name.replace("[]", "").split(".")
                own = path[0] in ("shapes", "strategies", "mfu", "hfu") or "." in name
                before = path if own else [*before[:-1], name]
                if path[0] not in ("shapes", "strategies") or (path[0] == "shapes") == (command == "sweep"):
                    yield tuple("tp" if key == "AXIS" else key for key in before)


def reached(found: Any, path: tuple[str, ...]) -> bool:
    for key in path:
        found = found[0] if isinstance(found, list) else found
        if not isinstance(found, dict) or key not in found:
            return False
        found = found[key]
    return True


@pytest.mark.parametrize("command", ["predict", "sweep", "compare"])
def test_fields_that_are_explained_are_there(run, small, command: str) -> None:
    """Each field of the table is one of the command's JSON."""
    text = small.read_text().replace("tp: 2, pp: 2, dp: 2", "tp: 2, cp: 2, dp: 2").replace("unfused", "flash")
    small.write_text(text)
    found = json.loads(run(command, small, "--format", "json").out)
    if command == "compare":  # figures of a strategy are in its row
        found |= next(row for row in found["strategies"] if row["checkpoint"])
    paths = list(told(command))
    assert len(paths) > 5
    assert [path for path in paths if not reached(found, path)] == []


def test_chunks_that_schedules_take_are_told(small) -> None:
    """scenarios/README.md, `training.schedule`: which take any vpp, which only 1."""
    line = next(row for row in README.splitlines() if row.startswith("| `training.schedule`"))
    any_vpp, _, one = line.partition("take any `vpp`")
    assert all(f"`{name}`" in any_vpp[any_vpp.index("(two chunks a stage)") :] for name in ANY_CHUNKS)
    only = {name for name in SCHEDULES if name not in (*ANY_CHUNKS, *TWO_CHUNKS, "none")}
    assert set(re.findall(r"`([\w-]+)`", one.partition(";")[2].partition("|")[0])) == only
    load_scenario(small, [("training.schedule", "zb-h1"), ("parallelism.vpp", "2")])
