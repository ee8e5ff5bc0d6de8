"""YAML files beside the published tables, which come along with them."""

from pathlib import Path
from typing import Any

from traincast.errors import DataError


def beside_tables(name: str) -> Path:
    """Where such a file lies."""
    from traincast.catalog import data_dir

    return data_dir() / "scenarios" / "published" / name


def read_mapping(path: Path, what: str, fix: str) -> dict[Any, Any]:
    """The mapping that a file holds. Raises DataError where it cannot be read, is no YAML, or is not `what`."""
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
    if not isinstance(found, dict):
        raise DataError(f"is not {what}", where=str(path), fix=fix)
    return found
