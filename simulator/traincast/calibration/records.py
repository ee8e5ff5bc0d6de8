"""One format for every measurement: a record, the run that it belongs to, and what was wrong with a file.

A record is one row of a table: a collective, a copy between devices, a kernel; from the microbenchmark suite also
two things at once (`overlap`), the creation of groups (`setup`) and a whole training step (`step`). What holds for
all rows of a table (hardware, software, launch) is its `RunInfo`. Host names never leave the importer in the clear.
"""

import hashlib
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Kind = Literal["collective", "copy", "kernel", "overlap", "setup", "step"]
Severity = Literal["refused", "dropped", "note"]
Scalar = str | int | float | bool


@dataclass(frozen=True)
class RunInfo:
    """What holds for all rows of one table; None and empty: not stated.

    `index` numbers the tables of a file from 0. `hosts` are labels of hashed names, `environment` holds only
    the variables that change what a collective does. `ranks_source` and `op_source` say how these two were
    found: `listed`, `highest rank`, `stated`, `command`, `inferred`, `text`, `columns`, `factor`, `given`.
    `world`, `nodes`, `backend`, `mesh` (axes and order) and `topology` (what `nvidia-smi topo -m` prints) come from
    the microbenchmark suite.
    """

    index: int = 0
    tool: str | None = None
    gpu: str | None = None
    driver: str | None = None
    nccl: str | None = None
    cuda: str | None = None
    torch: str | None = None
    date: str | None = None
    command: str | None = None
    launcher: str | None = None
    iterations: int | None = None
    warmup_iterations: int | None = None
    groups: int = 1
    hosts: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    ranks_source: str | None = None
    op_source: str | None = None
    backend: str | None = None
    world: int | None = None
    nodes: int | None = None
    mesh: str | None = None
    topology: str | None = None


@dataclass(frozen=True)
class Record:
    """One measured row; None: not stated.

    Sizes in bytes as nccl-tests counts them (all-gather and reduce-scatter: the whole), times in
    microseconds, `algbw` = size / time, `busbw` = algbw times the collective's factor, both per direction.
    `params` are the further coordinates of a copy or kernel (`m`, `n`, `k`; `row`, `column`) or of a collective
    (`family` of groups, `mode`: one group `alone` or `all` of the family at once, `groups` at once). Where the
    single samples are known, `time_us` is their median, `samples` their number, `half_width` half of the 95 %
    interval of that median as a share of it. `flags`: `one_rank` (nothing is communicated: no use for a bandwidth
    fit), `spike` (slower than 1.3 times the next larger size), `time_from_algbw` (the file prints no time),
    `all_groups` (several groups at once: they may share a NIC), `unstable` (`half_width` above what was asked
    for), `too_short` (near the resolution of the clock).
    """

    op: str | None
    run: RunInfo = field(default_factory=RunInfo)
    line: int = 0
    kind: Kind = "collective"
    algo: str | None = None
    proto: str | None = None
    dtype: str | None = None
    redop: str | None = None
    root: int | None = None
    ranks: int | None = None
    nodes: int | None = None
    size_bytes: int | None = None
    time_us: float | None = None
    algbw_bytes_per_s: float | None = None
    busbw_bytes_per_s: float | None = None
    wrong: float | None = None
    in_place_time_us: float | None = None
    in_place_algbw_bytes_per_s: float | None = None
    in_place_busbw_bytes_per_s: float | None = None
    in_place_wrong: float | None = None
    bandwidth_bytes_per_s: float | None = None
    flops_per_s: float | None = None
    samples: int | None = None
    quartile_1_us: float | None = None
    quartile_3_us: float | None = None
    min_us: float | None = None
    max_us: float | None = None
    half_width: float | None = None
    repeat: int = 0
    flags: tuple[str, ...] = ()
    params: tuple[tuple[str, Scalar], ...] = ()


@dataclass(frozen=True)
class Problem:
    """Something in a file that is no record: at which line, what, and how bad.

    `refused`: a table or the whole file is not used; `dropped`: one row; `note`: worth knowing, nothing lost.
    """

    line: int
    what: str
    severity: Severity = "dropped"


@dataclass(frozen=True)
class Imported:
    """What one file gave."""

    records: tuple[Record, ...] = ()
    problems: tuple[Problem, ...] = ()
    tables: int = 0

    @property
    def refusals(self) -> tuple[Problem, ...]:
        """Why a file without a single record is refused; empty where it has records or merely none measured."""
        return () if self.records else tuple(one for one in self.problems if one.severity == "refused")

    def joined(self, other: "Imported") -> "Imported":
        """Both together, problems in the order of their lines."""
        problems = sorted({*self.problems, *other.problems}, key=lambda one: (one.line, one.what))
        return Imported(self.records + other.records, tuple(problems), self.tables + other.tables)


def host_label(name: str) -> str:
    """A label that tells hosts apart without naming them: `host-` and 8 hex digits of SHA-256."""
    digest = hashlib.sha256(name.strip().lower().encode(errors="replace")).hexdigest()
    return f"host-{digest[:8]}"


def record_entry(record: Record) -> dict[str, Any]:
    """A record as plain data: `run` is the number of its table, `params` and `flags` are plain too."""
    entry = {key: value for key, value in vars(record).items() if key not in ("run", "params", "flags")}
    return {**entry, "run": record.run.index, "flags": list(record.flags), "params": dict(record.params)}


def run_entry(run: RunInfo) -> dict[str, Any]:
    """A run as plain data."""
    return {**asdict(run), "hosts": list(run.hosts), "environment": dict(run.environment)}
