"""What is known about the errors that stay: `scenarios/published/residual_notes.yaml`, a text a family."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from traincast.errors import DataError, nearest_names
from traincast.validate.beside import beside_tables, read_mapping

if TYPE_CHECKING:
    from traincast.validate import FamilyScore

HALF_OF_THE_NULL = 0.5


def notes_file() -> Path:
    """The file that comes along."""
    return beside_tables("residual_notes.yaml")


def load_notes(path: Path, families: Iterable[str]) -> Mapping[str, str]:
    """Text by family, on one line each. Raises DataError for a file of another form or a family that is not there."""
    what, fix = "a text a family", "write 'family: sentences'"
    found = read_mapping(path, what, fix)
    if not all(isinstance(text, str) and text.strip() for text in found.values()):
        raise DataError(f"is not {what}", where=str(path), fix=fix)
    known = tuple(families)
    for family in found:
        if family not in known:
            near = ", ".join(nearest_names(str(family), known) or known)
            raise DataError(f"no family {family!r}", where=str(path), fix=f"use one of {near}")
    return {family: " ".join(text.split()) for family, text in found.items()}


def needs_note(score: "FamilyScore") -> bool:
    """Whether a family's mean error is above half its null's: then what is missing must be said (DESIGN §10)."""
    if score.mape_pct is None or score.null_mape_pct is None:
        return False
    return score.mape_pct > HALF_OF_THE_NULL * score.null_mape_pct
