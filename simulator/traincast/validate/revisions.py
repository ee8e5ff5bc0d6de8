"""Which revision of its stack a published row ran, where its source tells.

`scenarios/published/revisions.yaml` names them by family and source: a page at a commit. A stack with its revision is
another stack, with a profile of its own.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from traincast.errors import DataError
from traincast.validate.beside import beside_tables, read_mapping
from traincast.validate.rows import PublishedRow


@dataclass(frozen=True)
class Revision:
    """A stack with its revision, and what tells that a source's rows ran it."""

    stack: str
    reason: str


def revisions_file() -> Path:
    """The file that comes along."""
    return beside_tables("revisions.yaml")


@cache
def load_revisions(path: Path) -> Mapping[tuple[str, str], Revision]:
    """Revisions by family and source. Raises DataError for a file of another form."""
    found: dict[tuple[str, str], Revision] = {}
    for family, sources in read_mapping(path, "sources a family", "write 'family: {source: {...}}'").items():
        for source, entry in sources.items() if isinstance(sources, dict) else ():
            texts = entry if isinstance(entry, dict) else {}
            if set(texts) != {"stack", "reason"} or not all(isinstance(t, str) and t.strip() for t in texts.values()):
                where = f"{path}: {family}.{source}"
                raise DataError("needs a stack and a reason, and nothing else", where=where, fix="write both, as text")
            found[str(family), str(source)] = Revision(texts["stack"], " ".join(texts["reason"].split()))
    return found


def revision_of(row: PublishedRow) -> Revision | None:
    """The revision that a row's source tells, None where it says no more than the row's stack."""
    return load_revisions(revisions_file()).get((row.family, row.text("source")))
