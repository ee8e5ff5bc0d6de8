"""`traincast topology import`: a cluster from the files that it already produces."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from traincast.cli.output import FormatOption, emit, write_file
from traincast.errors import TopologyError, UsageError

if TYPE_CHECKING:
    from traincast.report.tables import Table
    from traincast.topology.importers import Imported
    from traincast.topology.summary import Summary

_STDIN = "-"
_MOST_CELLS = 120


def import_(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE...",
            help="nvidia-smi topo -m, lspci, NCCL topology XML, ibnetdiscover, iblinkinfo, Slurm topology or a log of "
            "NCCL_DEBUG=INFO, in any combination; - is standard input.",
        ),
    ],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE.yaml", help="Write the cluster to this file.")
    ] = None,
    gpu: Annotated[str, typer.Option("--gpu", help="The GPU, where the files do not name it.")] = "",
    nodes: Annotated[
        int | None, typer.Option("--nodes", help="So many nodes like the one that the files describe.")
    ] = None,
    fmt: FormatOption = None,
) -> None:
    """Import a cluster from the files that it already produces; what they do not say is assumed, and listed."""
    from traincast.topology.importers import Options, cluster_yaml, import_bytes
    from traincast.topology.summary import summarise

    if output is not None and output.suffix.lower() not in (".yaml", ".yml"):
        raise UsageError(f"{output} is no name for a cluster file", where="-o", fix="end it in .yaml")
    name = output.stem if output is not None else Path(files[0]).stem
    found = import_bytes(
        [(file, _read(file)) for file in files], Options(gpu=gpu, nodes=nodes, name=name or "imported")
    )
    if output is not None:
        write_file(output, cluster_yaml(found))
    summary = summarise(found.cluster)
    emit(_entry(found, summary, output), _tables(found, summary), fmt)


def _read(name: str) -> bytes:
    """The bytes of a file or of standard input. Raises TopologyError where they cannot be read."""
    if name == _STDIN:
        return sys.stdin.buffer.read()
    try:
        return Path(name).read_bytes()
    except (OSError, ValueError) as error:
        reason = ((error.strerror if isinstance(error, OSError) else None) or type(error).__name__).lower()
        raise TopologyError(f"cannot read it: {reason}", where=name, fix="name a file that exists") from error


def _entry(found: "Imported", summary: "Summary", output: Path | None) -> dict[str, Any]:
    return {
        "name": found.cluster.name,
        "files": [{"file": one.file, "form": one.form, "says": dict(one.says)} for one in found.files],
        "counts": dict(found.counts),
        "parts": dict(summary.parts),
        "gpu_models": dict(summary.gpu_models),
        "links": [vars(row) for row in summary.links],
        "tiers": [vars(row) for row in summary.tiers],
        "assumed": list(found.assumed),
        "problems": [vars(problem) for problem in found.problems],
        "output": str(output) if output is not None else None,
    }


def _tables(found: "Imported", summary: "Summary") -> "list[Table]":
    from traincast.report.tables import Table
    from traincast.units import format_bandwidth, format_time

    counts = tuple((part.replace("_", " "), count) for part, count in found.counts.items())
    files = tuple((one.file, one.form, _short(one.says)) for one in found.files)
    links = tuple(
        (row.between, row.kind, row.links, format_bandwidth(row.bandwidth_bytes_per_s), format_time(row.latency_s))
        for row in summary.links
    )
    tables = [
        Table(found.cluster.name, ("part", "count"), counts),
        Table("Files", ("file", "form", "says"), files),
        Table("Links", ("between", "kind", "links", "one link, per direction", "latency"), links),
    ]
    if found.assumed:
        tables.append(Table("Assumed", ("assumption",), tuple((text,) for text in found.assumed)))
    if found.problems:
        rows = tuple((one.file, one.line, one.what) for one in found.problems)
        tables.append(Table("Problems", ("file", "line", "what"), rows))
    return tables


def _short(says: Any) -> str:
    """The plain figures of what a file says, on one line."""
    text = ", ".join(f"{key} {value}" for key, value in says.items() if isinstance(value, int | str) and value != "")
    return text if len(text) <= _MOST_CELLS else f"{text[: _MOST_CELLS - 3]}..."
