"""What is known about the errors that stay: `scenarios/published/residual_notes.yaml`, a text a family."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from traincast.errors import DataError, nearest_names

if TYPE_CHECKING:
    from traincast.validate import FamilyScore

HALF_OF_THE_NULL = 0.5


def notes_file() -> Path:
    """The file that comes along."""
    from traincast.catalog import data_dir

    return data_dir() / "scenarios" / "published" / "residual_notes.yaml"


def load_notes(path: Path, families: Iterable[str]) -> Mapping[str, str]:
    """Text by family, on one line each. Raises DataError for a file of another form or a family that is not there."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        found = YAML(typ="safe", pure=True).load(path.read_text(encoding="utf-8"))
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise DataError(
            f"cannot be read: {reason}", where=str(path), fix="reinstall traincast with its data"
        ) from error
    except (YAMLError, UnicodeDecodeError, ValueError) as error:
        first = str(error).splitlines()[0]
        raise DataError(f"is not YAML: {first}", where=str(path), fix="mend the line") from error
    if not isinstance(found, dict) or not all(isinstance(text, str) and text.strip() for text in found.values()):
        raise DataError("is not a text a family", where=str(path), fix="write 'family: sentences'")
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
