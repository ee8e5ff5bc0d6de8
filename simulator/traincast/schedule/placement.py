"""Which part of the model each chunk of a stage holds, and where its outputs go.

Three ways to lay a model over p stages with v chunks each:

- looped: part g lies on stage g mod p as chunk g div p; from the last stage the model goes on at the first.
- folded: odd chunks run back, so that the ends of the model share a stage: the V of ZB-V and DualPipeV (v = 2).
- both ways: two copies of the model, one from the first stage to the last and one back (DualPipe; v = 2, p parts).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

Place = tuple[int, int]
"""(stage, chunk)."""

Way = Literal[-1, 0, 1]
"""Where a message goes: to the previous stage, nowhere (both ends lie on one stage), to the next stage."""

FOLDED = ("zb-v", "dualpipev")
BOTH_WAYS = ("dualpipe",)


@dataclass(frozen=True)
class Hop:
    """The neighbour of a place in the model, and the way to it."""

    place: Place
    way: Way


@dataclass(frozen=True)
class Neighbours:
    """What lies before and after a place in the model; None at its ends."""

    before: Hop | None
    after: Hop | None


def family(name: str) -> str:
    """The schedule's name without the mark that tells the orders of an automatic schedule apart."""
    return name.partition("#")[0]


def chains(name: str, p: int, v: int) -> tuple[tuple[Place, ...], ...]:
    """Every copy of the model as the places that it passes, in the order of its layers."""
    if family(name) in BOTH_WAYS:
        return tuple((s, 0) for s in range(p)), tuple((s, 1) for s in reversed(range(p)))
    if family(name) in FOLDED:
        return (tuple((s if c % 2 == 0 else p - 1 - s, c) for c in range(v) for s in range(p)),)
    return (tuple((g % p, g // p) for g in range(p * v)),)


@lru_cache(maxsize=64)
def neighbours(name: str, p: int, v: int) -> Mapping[Place, Neighbours]:
    """Neighbours of every place. A looped model goes on from the last stage to the first by the way to the next."""
    found: dict[Place, Neighbours] = {}
    for chain in chains(name, p, v):
        for i, place in enumerate(chain):
            before = Hop(chain[i - 1], _way(place, chain[i - 1])) if i else None
            after = Hop(chain[i + 1], _way(place, chain[i + 1])) if i + 1 < len(chain) else None
            found[place] = Neighbours(before, after)
    return found


def _way(start: Place, end: Place) -> Way:
    step = end[0] - start[0]
    if start[1] != end[1]:  # on to another chunk: in a fold on the same stage, in a loop round the ends
        step = 0 if step == 0 else end[1] - start[1]
    return 1 if step > 0 else -1 if step < 0 else 0


def model_part(name: str, p: int, stage: int, chunk: int) -> int:
    """Position in the model, 0 at the embedding, of what a chunk of a stage holds."""
    back = p - 1 - stage
    if family(name) in BOTH_WAYS:
        return back if chunk else stage
    if family(name) in FOLDED:
        return chunk * p + (back if chunk % 2 else stage)
    return chunk * p + stage


def model_parts(name: str, p: int, v: int) -> int:
    """Number of parts that the model is cut into."""
    return p if family(name) in BOTH_WAYS else p * v


@lru_cache(maxsize=1024)
def parts_of(name: str, p: int, v: int, stage: int) -> tuple[int, ...]:
    """The parts of the model that a stage holds, by chunk."""
    return tuple(model_part(name, p, stage, chunk) for chunk in range(v))


def chunks_of_model(name: str, v: int) -> int:
    """Chunks that one copy of the model puts on a stage: v, or one of DualPipe's two."""
    return 1 if family(name) in BOTH_WAYS else v


def meets_itself(name: str) -> bool:
    """Whether the first and the last part of the model share a stage, as in a fold and where the model runs both ways.

    Tied embeddings then lie on one rank, and nothing is sent from the last stage to the first.
    """
    return family(name) in (*FOLDED, *BOTH_WAYS)


def stages_of(name: str, p: int, v: int, part: int) -> tuple[Place, ...]:
    """Where a part of the model lies: one place, or one for each copy of the model."""
    return tuple(chain[part] for chain in chains(name, p, v))
