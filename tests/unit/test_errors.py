"""errors.py. Law: the exit codes and message form of the design: 2 for the user's error, 1 for a failure."""

import pickle

import pytest

from traincast import errors


def subclasses(kind: type[errors.TraincastError]) -> list[type[errors.TraincastError]]:
    return [kind, *(deeper for child in kind.__subclasses__() for deeper in subclasses(child))]


@pytest.mark.parametrize(
    ("where", "fix", "text"),
    [
        (None, None, "heads 12 % tp 8 != 0"),
        ("a.yaml:3:5", None, "a.yaml:3:5: heads 12 % tp 8 != 0"),
        (None, "tp 4", "heads 12 % tp 8 != 0 (fix: tp 4)"),
        ("a.yaml:3:5", "tp 4", "a.yaml:3:5: heads 12 % tp 8 != 0 (fix: tp 4)"),
    ],
)
def test_an_error_prints_on_one_line_with_place_and_fix(where: str | None, fix: str | None, text: str) -> None:
    error = errors.ShapeError("heads 12 % tp 8 != 0", where=where, fix=fix)
    assert str(error) == text
    assert (error.message, error.where, error.fix) == ("heads 12 % tp 8 != 0", where, fix)


def test_exit_codes() -> None:
    assert errors.TraincastError.exit_code == 1
    users = subclasses(errors.UserError)
    assert {kind.__name__ for kind in users} >= {
        "ScenarioError",
        "ShapeError",
        "CatalogError",
        "TopologyError",
        "DataError",
        "UsageError",
    }
    assert {kind.exit_code for kind in users} == {2}


@pytest.mark.parametrize("kind", subclasses(errors.TraincastError))
def test_errors_cross_process_borders_whole(kind: type[errors.TraincastError]) -> None:
    """Sweeps run in process pools, which pickle exceptions; keyword arguments must survive that."""
    error = kind("message", where="here", fix="this")
    back = pickle.loads(pickle.dumps(error))
    assert type(back) is kind
    assert str(back) == str(error)


def test_combined_reports_each_problem_on_its_own_line_and_keeps_the_class() -> None:
    first = errors.DataError("one", where="a.csv:1")
    second = errors.DataError("two", where="a.csv:2", fix="that")
    assert errors.combined([first]) is first
    both = errors.combined([first, second])
    assert type(both) is errors.DataError
    assert str(both).splitlines() == ["2 errors", "a.csv:1: one", "a.csv:2: two (fix: that)"]


def test_nearest_names_ignore_case_and_keep_the_spelling() -> None:
    names = ["A100-80GB-SXM", "A100-40GB-SXM", "OPA100"]
    assert errors.nearest_names("a100-80gb-sxn", names)[0] == "A100-80GB-SXM"
    assert errors.nearest_names("zzz", names) == ()
