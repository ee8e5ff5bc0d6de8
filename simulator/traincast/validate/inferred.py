"""Columns that the makers of a table filled from elsewhere, and that its own rows contradict.

`scenarios/published/inferred.yaml` names them by family and column, with the source and the reason. What is inferred is
taken as not stated: the forecast fills it with what the stack does by its profile, else with the best that fits, as
authors do, and the row says so.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from traincast.errors import DataError
from traincast.validate.beside import beside_tables, read_mapping
from traincast.validate.rows import COLUMNS, PublishedRow


@dataclass(frozen=True)
class Inference:
    """One column of a family that is no statement of its source: where that was looked up, why it is not believed.

    `value`: only cells that say so; empty: all of the column.
    """

    column: str
    source: str
    reason: str
    value: str = ""

    def is_of(self, row: PublishedRow) -> bool:
        """Whether a cell of the row was inferred."""
        text = row.text(self.column)
        return bool(text) and self.value in ("", text)


def inferred_file() -> Path:
    """The file that comes along."""
    return beside_tables("inferred.yaml")


@cache
def load_inferences(path: Path) -> Mapping[str, tuple[Inference, ...]]:
    """Inferences by family. Raises DataError for a file of another form or a column that no table has."""
    found = read_mapping(path, "a list of columns a family", "write 'family: {column: {...}}'")
    return {str(family): tuple(_inferences(path, str(family), columns)) for family, columns in found.items()}


def _inferences(path: Path, family: str, columns: object) -> list[Inference]:
    found = []
    for column, entry in columns.items() if isinstance(columns, dict) else ():
        where = f"{path}: {family}.{column}"
        if column not in COLUMNS:
            raise DataError(f"no column {column!r}", where=where, fix="use a column of the published tables")
        texts = entry if isinstance(entry, dict) else {}
        named = set(texts) - {"value"} == {"source", "reason"}
        if not named or not all(isinstance(t, str) and t.strip() for t in texts.values()):
            message = "needs a source and a reason, and nothing else but the value of the cells"
            raise DataError(message, where=where, fix="write both, as text")
        found.append(Inference(column, **{name: " ".join(text.split()) for name, text in texts.items()}))
    if not found:
        raise DataError("names no column", where=f"{path}: {family}", fix="write 'column: {source: ..., reason: ...}'")
    return found


def as_stated_by_source(row: PublishedRow) -> tuple[PublishedRow, tuple[str, ...]]:
    """The row without the cells that are inferences, and a note for each of these; most rows as they are."""
    own = [one for one in load_inferences(inferred_file()).get(row.family, ()) if one.is_of(row)]
    if not own:
        return row, ()
    cells = {**row.cells, **{one.column: "" for one in own}}
    notes = tuple(f"{one.column} {row.text(one.column)} is inferred ({one.source}): {one.reason}" for one in own)
    return replace(row, cells=cells), notes
