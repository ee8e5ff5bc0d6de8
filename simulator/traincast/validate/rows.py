"""Reads files of published measurements: one header, one measured training step a row, empty = not stated.

Free text is never parsed. A column that lacks is empty in every row. One that is not of the header is never read, but
one whose name is nearly in it is refused: its rows would be scored as if it said nothing.
"""

import csv
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from traincast.errors import DataError, UserError, combined

COLUMNS = (
    "id", "family", "table", "model", "hidden", "layers", "heads", "kv_heads", "ffn_hidden", "vocab", "seq",
    "experts", "topk", "gpu", "gpus", "gpus_per_node", "nics_per_node", "nic_gbit_per_s", "nic_kind",
    "network", "tp", "pp", "cp", "ep", "dp", "vpp", "microbatch", "global_batch", "schedule", "recompute",
    "sequence_parallel", "zero_stage", "precision", "iter_time_s", "tflops_per_gpu", "tokens_per_s_per_gpu",
    "peak_memory_gb", "flop_convention", "stack", "gated_mlp", "attention", "scatter_gather", "overlap_dp",
    "overlap_tp", "p2p_overlap", "compile", "offload", "stage_layers", "embedding_as_layer", "fsdp_shard",
    "cp_kind", "head_dim", "moe_ffn_hidden", "shared_experts", "first_dense_layers", "etp", "dispatcher",
    "capacity_factor", "mla", "profiled_tf_ms", "profiled_tb_ms", "profiled_tw_ms", "profiled_tcomm_ms",
    "memory_limit_gb", "remark", "unusual", "grade", "source",
)  # fmt: skip
"""The header, in order."""

MISSPELT = 0.8
"""Share of letters in common from which a name is taken for a misspelt column."""

ESSENTIAL_COLUMNS = ("id", "family", "gpu", "gpus", "hidden", "layers", "seq", "global_batch")
"""Without these columns a file cannot be one of published measurements."""


class RowSkippedError(Exception):
    """A row that cannot be forecast; the text is the reason that the report shows."""


class UnreadableCellError(RowSkippedError):
    """A cell that says something else than its column asks for; the text begins with the column."""


@dataclass(frozen=True)
class PublishedRow:
    """One row: the file's name, the line it begins on, and its cells."""

    file: str
    line: int
    cells: Mapping[str, str]

    @property
    def id(self) -> str:
        """The row's identifier; the place in the file where it has none."""
        return self.cells.get("id", "") or f"{self.file}:{self.line}"

    @property
    def family(self) -> str:
        """The family that the row is scored with."""
        return self.cells.get("family", "") or "(none)"

    def text(self, column: str) -> str:
        """The cell without surrounding blanks; empty where not stated."""
        return self.cells.get(column, "")

    def number(self, column: str) -> float | None:
        """The cell as a number from 0 up, None where not stated. Raises UnreadableCellError for anything else."""
        text = self.text(column)
        if not text:
            return None
        try:
            value = float(text)
        except ValueError:
            raise UnreadableCellError(f"{column} is not a number: {text!r}") from None
        if not math.isfinite(value) or value < 0:
            raise UnreadableCellError(f"{column} is not a figure that can be: {text!r}")
        return value

    def count(self, column: str) -> int | None:
        """The cell as a whole number from 1 up, None where not stated. Raises UnreadableCellError otherwise."""
        value = self.number(column)
        if value is None:
            return None
        if value != int(value) or value < 1:
            raise UnreadableCellError(f"{column} is not a whole number from 1 up: {self.text(column)!r}")
        return int(value)

    def essential(self, column: str) -> int:
        """The count in a column that no forecast can do without. Raises RowSkippedError where it is empty."""
        value = self.count(column)
        if value is None:
            raise RowSkippedError(f"{column} is not stated")
        return value

    def flag(self, column: str) -> bool | None:
        """A y/n cell; None where not stated. Raises UnreadableCellError for anything else."""
        text = self.text(column).lower()
        if text in ("y", "yes", "true", "1"):
            return True
        if text in ("n", "no", "false", "0"):
            return False
        if text:
            raise UnreadableCellError(f"{column} is neither y nor n: {text!r}")
        return None


def expand(paths: Sequence[Path]) -> tuple[Path, ...]:
    """The files meant by `paths`: a folder stands for its *.csv, in order of name."""
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = sorted(path.glob("*.csv"))
            if not inside:
                raise DataError("no .csv file in this folder", where=str(path), fix="name a CSV file")
            found += inside
        else:
            found.append(path)
    return tuple(found)


def read_rows(path: Path) -> tuple[PublishedRow, ...]:
    """All rows of one file. Raises DataError where it cannot be read or is not of this form."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            return tuple(_rows(path, stream))
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise DataError(f"cannot be read: {reason}", where=str(path), fix="check the path") from error
    except UnicodeDecodeError as error:
        raise DataError(
            f"is not UTF-8 text (byte {error.start})", where=str(path), fix="give a CSV file of measured rows"
        ) from error


def _rows(path: Path, stream: Iterator[str]) -> Iterator[PublishedRow]:
    reader = csv.reader(stream)
    try:
        header = [name.strip() for name in next(reader, [])]
        _check_header(path, header)
        for cells in reader:
            if not any(cell.strip() for cell in cells):
                continue
            if len(cells) > len(header):
                raise DataError(
                    f"{len(cells)} cells where the header has {len(header)}",
                    where=f"{path}:{reader.line_num}",
                    fix="quote cells that hold commas",
                )
            pairs = zip(header, (cell.strip() for cell in cells), strict=False)
            yield PublishedRow(path.name, reader.line_num, dict(pairs))
    except csv.Error as error:
        raise DataError(f"is not CSV: {error}", where=f"{path}:{reader.line_num}", fix="mend the line") from error


def _check_header(path: Path, header: Sequence[str]) -> None:
    lacking = [name for name in ESSENTIAL_COLUMNS if name not in header]
    if lacking:
        raise DataError(
            f"lacks the column{'s' if len(lacking) > 1 else ''} {', '.join(lacking)}",
            where=f"{path}:1",
            fix="use the header of scenarios/published/*.csv",
        )
    twice = sorted({name for name in header if header.count(name) > 1 and name})
    if twice:
        raise DataError(f"has the column {twice[0]} twice", where=f"{path}:1", fix="keep one of them")
    near = {name: get_close_matches(name, COLUMNS, 1, MISSPELT) for name in header if name and name not in COLUMNS}
    problems: list[UserError] = [_unknown(path, name, found[0]) for name, found in near.items() if found]
    if problems:
        raise combined(problems)


def _unknown(path: Path, name: str, near: str) -> DataError:
    fix = f"name it {near} where it is meant, else give it a name that is not nearly that"
    return DataError(f"unknown column {name!r}", where=f"{path}:1", fix=fix)
