"""The laws of the command line: exit 0, 1 or 2; one line on stderr; a traceback only with --debug; a light --help."""

import subprocess
import sys

import pytest
import typer

from traincast.cli.main import describe, globals_first
from traincast.errors import DataError, ScenarioError, TraincastError, combined

HEAVY = ("numpy", "pandas", "matplotlib", "networkx", "scipy", "simpy", "pydantic", "ruamel", "torch", "rich")
COMMANDS = ("predict", "sweep", "validate", "mesh", "topology", "report")


def traincast(*arguments: str, **options) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "traincast", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, **options)


@pytest.mark.parametrize("arguments", [(), ("--help",)])
def test_help_names_every_command(run, arguments):
    outcome = run(*arguments)
    assert outcome.code == 0
    assert all(f"  {command} " in outcome.out for command in COMMANDS)
    assert outcome.err == ""


def test_help_imports_nothing_heavy():
    script = "import sys; from traincast.cli.main import main; main(['--help']); print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    loaded = {name.split(".")[0] for name in done.stderr.split()}
    assert not loaded & set(HEAVY)


@pytest.mark.parametrize("command", [*((name,) for name in COMMANDS), ("topology", "show"), ("report", "sc21")])
def test_every_command_has_help(run, command):
    outcome = run(*command, "--help")
    assert (outcome.code, outcome.err) == (0, "")
    assert "Usage: traincast" in outcome.out


def test_version(run):
    outcome = run("--version")
    assert outcome.code == 0
    assert outcome.out.startswith("traincast ")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("guess",), "No such command 'guess'"),
        (("report",), "Missing command"),
        (("predict",), "Missing argument 'SCENARIO'"),
        (("predict", "x", "--engine", "crystal"), "'crystal' is not one of 'des', 'analytic'"),
        (("predict", "x", "--format", "xml"), "'xml' is not one of"),
        (("predict", "x", "--sett", "a=b"), "--sett"),
        (("sweep", "x", "--top", "0"), "--top"),
        (("sweep", "x", "--top", "many"), "--top"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(run, arguments, words):
    outcome = run(*arguments)
    assert outcome.code == 2
    assert outcome.out == ""
    assert outcome.err.count("\n") == 1
    assert words in outcome.err
    assert "(fix: see 'traincast" in outcome.err


def test_an_unexpected_error_is_one_line_and_exit_code_1(run, monkeypatch):
    def broken(*_: object) -> None:
        raise ZeroDivisionError("a bug\nover two lines")

    monkeypatch.setattr("traincast.scenario.load_scenario", broken)
    outcome = run("predict", "x")
    assert outcome.code == 1
    assert outcome.err.splitlines() == [
        "traincast: unexpected ZeroDivisionError: a bug over two lines (run with --debug for the traceback)"
    ]


@pytest.mark.parametrize("place", [0, 2])
def test_debug_shows_the_traceback_wherever_it_stands(run, place):
    arguments = ["predict", "nowhere"]
    arguments.insert(place, "--debug")
    outcome = run(*arguments)
    assert outcome.code == 2
    assert "Traceback" in outcome.err
    assert outcome.err.splitlines()[-1].startswith("traincast: no scenario 'nowhere'")


def test_without_debug_there_is_no_traceback(run):
    assert "Traceback" not in run("predict", "nowhere").err


def test_several_problems_are_all_told():
    problems = [ScenarioError(f"wrong {n}", where=f"a.yaml:{n}:1", fix=f"mend {n}") for n in (1, 2)]
    line, code = describe(combined(problems))
    assert line == "2 errors: a.yaml:1:1: wrong 1 (fix: mend 1); a.yaml:2:1: wrong 2 (fix: mend 2)"
    assert code == 2


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (DataError("no", fix="do", where="here"), ("here: no (fix: do)", 2)),
        (TraincastError("no"), ("no", 1)),
        (typer.Abort(), ("stopped", 1)),
        (MemoryError(), ("unexpected MemoryError (run with --debug for the traceback)", 1)),
    ],
)
def test_exit_codes(error, expected):
    assert describe(error) == expected


def test_options_of_every_command_may_stand_anywhere():
    assert globals_first(["predict", "x", "--catalog", "d", "--debug"]) == ["--catalog", "d", "--debug", "predict", "x"]
    assert globals_first(["predict", "--catalog=d"]) == ["--catalog=d", "predict"]
    assert globals_first(["predict", "--", "--debug"]) == ["predict", "--", "--debug"]


def test_a_catalogue_that_is_not_there(run, tmp_path, small):
    outcome = run("predict", small, "--catalog", tmp_path / "nowhere")
    assert outcome.code == 2
    assert "no catalogue" in outcome.err


def test_the_module_runs_and_a_closed_pipe_is_quiet():
    done = traincast("--version")
    assert (done.returncode, done.stderr) == (0, "")
    script = f"{sys.executable} -m traincast topology list --format json | head -c 1"
    piped = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False, timeout=60)
    assert piped.stdout == "{"
    assert piped.stderr == ""
