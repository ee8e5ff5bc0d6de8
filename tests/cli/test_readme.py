"""What the README shows is run: its lines of use, as a user would type them."""

import re
import shlex
from pathlib import Path

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


@pytest.mark.parametrize(
    "family",
    [
        pytest.param("sc21", marks=pytest.mark.slow),
        "korthikanti",
        "vtrain",
        pytest.param("vtrain_single", marks=pytest.mark.slow),
    ],
)
def test_validation_table_is_what_validate_prints(run, family: str) -> None:
    """The figures of "How good it is" are those of today's code, to the digits shown."""
    import json

    (f,) = json.loads(run("validate", "--family", family, "--format", "json").out)["families"]
    worst, null = (f"{f[k]:.1f} %" if f[k] < 5 else f"{f[k]:.0f} %" for k in ("max_abs_pct", "null_mape_pct"))
    rows = f"{f['scored']} ({f['fitted']} fitted)"
    line = f"| {rows} | {f['mape_pct']:.1f} % | {worst} | {null} | {f['pearson_rate']:.2f} |"
    assert line in README
