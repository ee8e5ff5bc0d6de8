"""What the readers of collectives hand to the judge: rows as printed, and what else the file says about them."""

from dataclasses import dataclass, field, replace

from traincast.calibration.printed import Printed
from traincast.calibration.records import Problem, RunInfo

_MICROSECOND = 1e-6
_GIGA = 1e9


@dataclass(frozen=True)
class Side:
    """The figures of one direction of use (out of place, or in place) of one row, as printed.

    `time` in microseconds, `algbw` and `busbw` in GB/s; `wrong` is the count of wrong elements or the error,
    None where it was not checked. `host_time`: `time` is that of the host, and algbw is not from it.
    """

    time: Printed | None = None
    algbw: Printed | None = None
    busbw: Printed | None = None
    wrong: float | None = None
    host_time: bool = False

    def rate(self, size_bytes: int) -> tuple[float, float] | None:
        """The span of size / time in GB/s that the printed time allows; from algbw where no time tells."""
        if self.time is not None and not self.host_time:
            low, high = max(self.time.low, 0.0), self.time.high
            scale = size_bytes / (_GIGA * _MICROSECOND)
            return (scale / high, scale / low) if low > 0 else None
        if self.algbw is not None and self.algbw.low > 0:
            return self.algbw.low, self.algbw.high
        return None


@dataclass(frozen=True)
class Row:
    """One row of a table; None: the column lacks or is blank."""

    line: int
    size: int
    out: Side | None
    inside: Side | None = None
    count: int | None = None
    dtype: str | None = None
    redop: str | None = None
    root: int | None = None
    algo: str | None = None
    proto: str | None = None


@dataclass(frozen=True)
class Evidence:
    """What a file says about op and ranks beside the rows.

    `told_op` is a field of the format itself, `text_op` the name of a program near the table. `columns` are
    those of the table; None where its header is lost, or where it is no table of nccl-tests. `listed` ranks
    come from lines of ranks (`complete`: all of them stand there; `elided`: an ellipsis stands among them),
    `told_ranks` from NCCL's log or a field, `command_ranks` are counts that command lines allow.
    `same_rank_lines` are those in which rank 0 is listed again as another process.
    """

    columns: frozenset[str] | None = None
    told_op: str | None = None
    text_op: str | None = None
    text_line: int = 0
    listed: int | None = None
    elided: bool = False
    complete: bool = True
    told_ranks: int | None = None
    command_ranks: tuple[int, ...] = ()
    nodes: int | None = None
    same_rank_lines: tuple[int, ...] = ()


@dataclass(frozen=True)
class RawTable:
    """The rows of one table with their evidence, and the problems that were met while reading them.

    `line` is where its rows begin.
    """

    line: int
    rows: tuple[Row, ...]
    evidence: Evidence = field(default_factory=Evidence)
    run: RunInfo = field(default_factory=RunInfo)
    problems: tuple[Problem, ...] = ()

    def numbered(self, index: int) -> "RawTable":
        """The same table as number `index` of its file."""
        return replace(self, run=replace(self.run, index=index))
