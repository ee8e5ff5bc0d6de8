"""Options of `--sharing ecmp`: how many flows are hashed, and under which seeds."""

from typing import TYPE_CHECKING, Annotated, Final

import typer

from traincast.errors import UsageError

if TYPE_CHECKING:
    from traincast.plan.hashes import HashSpread
    from traincast.scenario import Scenario

_MOST_SEEDS: Final = 100

FlowsOption = Annotated[
    int | None,
    typer.Option(
        "--ecmp-flows",
        metavar="N",
        help="With --sharing ecmp: flows from NIC to NIC, each hashed by itself: channels of a NIC times queue pairs of"
        " a connection (2: NCCL's two channels with one queue pair).",
    ),
]
SeedOption = Annotated[
    str | None,
    typer.Option(
        "--ecmp-seed",
        metavar="S[..S]",
        help="With --sharing ecmp: the seed of the hash (0). A range such as 0..9 forecasts each and shows the median,"
        " beside the best and the worst.",
    ),
]


def refuse_without_ecmp(sharing: str, flows: int | None, seed: str | None) -> None:
    """Raises UsageError for an option of the hash where nothing is hashed."""
    for option, value in (("--ecmp-flows", flows), ("--ecmp-seed", seed)):
        if value is not None and sharing != "ecmp":
            raise UsageError(f"--sharing {sharing} hashes no flows", where=option, fix="add --sharing ecmp")


def parse_seeds(text: str | None) -> tuple[int, ...]:
    """`3` as (3,), `0..9` as (0, 1, … 9), none as (0,). Raises UsageError for anything else."""
    first, dots, last = (text or "0").strip().partition("..")
    ends = (first, last if dots else first)
    fix = f"give a whole number, or a range of at most {_MOST_SEEDS} such as 0..9"
    if not all(end.isascii() and end.isdigit() and len(end) < 10 for end in ends):
        raise UsageError(f"{text!r} is no seed", where="--ecmp-seed", fix=fix)
    seeds = range(int(ends[0]), int(ends[1]) + 1)
    if not 1 <= len(seeds) <= _MOST_SEEDS:
        raise UsageError(f"{text!r} are {len(seeds)} seeds", where="--ecmp-seed", fix=fix)
    return tuple(seeds)


def hashed(scenario: "Scenario", flows: int | None, seed: str | None, engine: str) -> "HashSpread":
    """The forecasts under each seed. Raises UsageError, with the option, for values that cannot be."""
    from traincast.plan.hashes import over_seeds
    from traincast.topology.links import DEFAULT_FLOWS, MOST_FLOWS

    count = DEFAULT_FLOWS if flows is None else flows
    if not 1 <= count <= MOST_FLOWS:
        raise UsageError(f"{count} flows from NIC to NIC", where="--ecmp-flows", fix=f"give 1 to {MOST_FLOWS}")
    return over_seeds(scenario, count, parse_seeds(seed), "analytic" if engine == "analytic" else "des")
