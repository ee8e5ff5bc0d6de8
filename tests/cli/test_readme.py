"""What the README shows is run: its lines of use, as a user would type them."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks() -> list[tuple[bool, str]]:
    """(is a set-up block, text) of every sh block."""
    found = re.findall(r"(<!-- setup -->\n)?```sh\n(.*?)```", README, re.S)
    return [(bool(setup), text) for setup, text in found]


def uses() -> list[str]:
    lines = [line for setup, text in blocks() if not setup for line in text.splitlines()]
    return [line.split("#")[0].strip() for line in lines if line.startswith("traincast")]


def test_two_setup_blocks_of_one_command_line() -> None:
    """One installs and runs the main job, one installs and passes the tests."""
    setup = [text.strip().splitlines() for is_setup, text in blocks() if is_setup]
    assert [len(lines) for lines in setup] == [1, 1]
    assert "traincast predict" in setup[0][0]
    assert "pytest" in setup[1][0]


def test_six_lines_of_use() -> None:
    assert len(uses()) == 6


SLOW = ("traincast sweep", "traincast validate", "traincast report sc21")
"""Lines of use that take more than a few seconds."""


def timed(line: str) -> object:
    return pytest.param(line, marks=pytest.mark.slow) if line.startswith(SLOW) else line


@pytest.mark.parametrize("line", map(timed, uses()))
def test_use(line: str, run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = run(*shlex.split(line)[1:])
    assert done.code == 0
    assert done.out or list(tmp_path.rglob("*"))


def test_files_that_the_readme_names_exist() -> None:
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", README) if "://" not in link]
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


@pytest.mark.parametrize("family", ["korthikanti", "vtrain", "zero_bubble", "internevo"])
def test_validation_table_is_what_validate_prints(run, family: str) -> None:
    """The figures of "How good it is" are those of today's code, to the digits shown."""
    (found,) = json.loads(run("validate", "--family", family, "--format", "json").out)["families"]
    assert validation_cells(found) in README


@pytest.mark.slow
def test_whole_validation_table_is_what_validate_prints(run) -> None:
    """Every row of the table but the first, which is of seven rows that `tests/accuracy` checks."""
    found = json.loads(run("validate", "--format", "json").out)["families"]
    printed = {validation_cells(one) for one in found if one["scored"]}
    table = README[README.index("| published steps |") :].split("\n\n", 1)[0].splitlines()[3:]
    assert len(table) > 12
    assert [line for line in table if "|" + line.split("|", 2)[2] not in printed] == []


def validation_cells(family: dict[str, Any]) -> str:
    """The cells of a family behind its name, as the table has them."""
    sizes = (family["max_abs_pct"], family["null_mape_pct"])
    worst, null = (f"{size:.1f} %" if size < 5 else f"{size:.0f} %" for size in sizes)
    rows = f"{family['scored']} ({family['fitted']} fitted)"
    return f"| {rows} | {family['mape_pct']:.1f} % | {worst} | {null} | {family['pearson_rate']:.2f} |"
