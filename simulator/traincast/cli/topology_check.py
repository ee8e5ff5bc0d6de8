"""`traincast topology check`: what is wrong with a cluster's wiring, and what it costs."""

from collections import Counter
from typing import TYPE_CHECKING, Annotated

import typer

from traincast.cli.output import FormatOption, OutputOption, emit

if TYPE_CHECKING:
    from traincast.report.tables import Table
    from traincast.topology.check import Finding

_FAILED = 1


def check(
    name: Annotated[str, typer.Argument(help="A cluster's name (see 'topology list') or a .yaml file.")],
    fmt: FormatOption = None,
    output: OutputOption = None,
) -> None:
    """Compare each part with its like: missing cables, wrong rails, slow links, GPUs without a NIC.

    Exits with 1 where something is not wired as its like are, with 0 where parts are only slow or not shown in full.
    """
    from traincast.topology.check import check_cluster
    from traincast.topology.load import load_cluster

    cluster = load_cluster(name)
    findings = check_cluster(cluster)
    count = Counter(finding.severity for finding in findings)
    payload = {
        "name": cluster.name,
        "errors": count["error"],
        "warnings": count["warning"],
        "notes": count["note"],
        "findings": [vars(finding) for finding in findings],
    }
    emit(payload, [_table(cluster.name, findings)], fmt, output)
    if count["error"]:
        raise typer.Exit(_FAILED)


def _table(name: str, findings: "tuple[Finding, ...]") -> "Table":
    from traincast.report.tables import Table

    rows = tuple((f.severity, f.what, f.part, f.message, f.loss) for f in findings)
    what = f"{len(rows)} finding{'' if len(rows) == 1 else 's'}" if rows else "nothing found"
    return Table(f"{name}: {what}", ("severity", "what", "part", "finding", "loss"), rows)
