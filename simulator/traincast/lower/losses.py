"""What sharing cost, in words: the links on which transfers slowed each other."""

from traincast.lower.program import Program, Result
from traincast.units import format_time


def describe_losses(program: Program, result: Result, most: int = 5) -> tuple[str, ...]:
    """One line for each of the costliest links, `most` at most; empty where nothing was slowed.

    The times are how much longer the transfers of one simulated class took in all. They need not be exposed: what
    computation hides costs nothing.
    """
    if program.sharing is None:
        return ()
    lines = []
    for loss in result.losses[:most]:
        link = program.sharing.links[loss.link]
        alike = f" and {link.links - 1} alike" if link.links > 1 else ""
        parts = [
            f"{what} took {format_time(seconds)} longer"
            for what, seconds in (("pipeline messages", loss.pp_s), ("gradient reductions", loss.dp_s))
            if seconds > 0.0
        ]
        lines.append(f"link {link.name}{alike}: {' and '.join(parts)}")
    return tuple(lines)
