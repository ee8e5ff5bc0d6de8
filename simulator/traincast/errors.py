"""The exception tree, and the helpers that make a message useful.

Every error that a user can cause says where it is (``file:line:col`` or the option), what is wrong, and a
fix. The command line prints ``str(error)`` and exits with ``error.exit_code``; nothing else needs to know the
classes.
"""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import ClassVar


class TraincastError(Exception):
    """Base of everything this package raises on purpose.

    `message` says what is wrong, `fix` what to do about it, `where` the place (``file:line:col``, an option).
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, fix: str | None = None, where: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix
        self.where = where

    def __str__(self) -> str:
        place = f"{self.where}: " if self.where else ""
        remedy = f" (fix: {self.fix})" if self.fix else ""
        return f"{place}{self.message}{remedy}"

    def __reduce__(self) -> tuple[object, ...]:
        # BaseException's own pickling loses keyword-only arguments, and errors cross process pools in sweeps
        return _rebuild, (type(self), self.message, self.fix, self.where)


class UserError(TraincastError):
    """Something the user wrote cannot be right; the command line exits with 2."""

    exit_code: ClassVar[int] = 2


class ScenarioError(UserError):
    """A scenario file, or an override of one of its keys."""


class ShapeError(UserError):
    """A parallel shape that cannot be: two numbers that clash."""


class CatalogError(UserError):
    """A catalogue file, or a part that no catalogue has."""


class TopologyError(UserError):
    """A cluster description or a fabric file."""


class DataError(UserError):
    """A file of measurements, or a profile."""


class UsageError(UserError):
    """An option of the command line."""


def combined(problems: Sequence[UserError]) -> UserError:
    """One error that reports all `problems`, a line each, so that a file is mended in one pass.

    A single problem is returned as it is. The class is that of the first; mixed lists should not occur.
    """
    if len(problems) == 1:
        return problems[0]
    lines = "\n".join(str(problem) for problem in problems)
    return type(problems[0])(f"{len(problems)} errors\n{lines}")


def nearest_names(name: str, choices: Iterable[str], count: int = 3) -> tuple[str, ...]:
    """The `count` choices most like `name` (case ignored), most alike first; empty when none is alike."""
    by_lower = {choice.lower(): choice for choice in choices}
    return tuple(by_lower[hit] for hit in get_close_matches(name.lower(), by_lower, n=count, cutoff=0.4))


def _rebuild(kind: type[TraincastError], message: str, fix: str | None, where: str | None) -> TraincastError:
    return kind(message, fix=fix, where=where)
