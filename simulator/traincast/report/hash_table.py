"""The spread of a forecast over seeds of the hash, as a table."""

from traincast.plan.hashes import HashSpread
from traincast.report.tables import Cell, Table
from traincast.units import format_time


def hash_table(spread: HashSpread) -> Table:
    """Best, median and worst step time with their seeds, or that of all where they are equal; the rest of the forecast
    is that of the median."""
    chosen = spread.chosen()
    alike = len(chosen) == 1
    rows = tuple(
        ("all alike" if alike else name, Cell(row.step_time_s, format_time(row.step_time_s)), None if alike else seed)
        for name, (seed, row) in chosen.items()
    )
    title = f"Hash of parallel links: {len(spread.seeds)} seeds, {spread.flows} flows from NIC to NIC"
    return Table(title, ("of the seeds", "step time", "seed"), rows)
