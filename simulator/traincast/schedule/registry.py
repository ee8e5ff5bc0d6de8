"""Schedules by name."""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from hashlib import sha256
from types import MappingProxyType

from traincast.errors import ShapeError
from traincast.schedule.dualpipe import dualpipe
from traincast.schedule.dualpipev import dualpipev
from traincast.schedule.gpipe import gpipe
from traincast.schedule.interleaved import interleaved
from traincast.schedule.looped_bfs import looped_bfs
from traincast.schedule.none import no_pipeline
from traincast.schedule.one_f_one_b import one_f_one_b
from traincast.schedule.times import PassTimes
from traincast.schedule.types import Schedule, ScheduleKey
from traincast.schedule.zb_auto import automatic, zb_1p, zb_2p
from traincast.schedule.zb_h1 import zb_h1
from traincast.schedule.zb_h2 import zb_h2
from traincast.schedule.zb_v import zb_v

SCHEDULES: Mapping[str, Callable[[int, int, int], Schedule]] = MappingProxyType(
    {
        "none": no_pipeline,
        "gpipe": gpipe,
        "1f1b": one_f_one_b,
        "interleaved": interleaved,
        "looped-bfs": looped_bfs,
        "zb-h1": zb_h1,
        "zb-h2": zb_h2,
        "zb-1p": zb_1p,
        "zb-2p": zb_2p,
        "zb-v": zb_v,
        "dualpipe": dualpipe,
        "dualpipev": dualpipev,
    }
)

AUTOMATIC: Mapping[str, int] = MappingProxyType({"zb-1p": 1, "zb-2p": 2})
"""Schedules that are searched for, and their memory limit in units of what 1F1B holds on its first stage."""

SPLIT = ("zb-h1", "zb-h2", "zb-1p", "zb-2p", "zb-v", "dualpipe", "dualpipev")
"""Schedules that split backwards into I and W."""

ANY_CHUNKS = ("interleaved", "looped-bfs", "zb-h1")
"""Schedules of any number of chunks a stage."""

TWO_CHUNKS = ("zb-v", "dualpipe", "dualpipev")
"""Schedules of two chunks a stage."""


@lru_cache(maxsize=32)
def build(name: str, p: int, m: int, v: int = 1) -> Schedule:
    """The instruction lists of schedule `name` for p stages, m microbatches and v chunks a stage.

    The automatic ones are searched for F = I = W; `build_timed` takes times. Raises ShapeError where the schedule
    cannot be.
    """
    _check(name, p, m, v)
    return SCHEDULES[name](p, m, v)


def build_timed(
    key: ScheduleKey, times: PassTimes | Sequence[PassTimes], after_input: float = 1.0
) -> tuple[ScheduleKey, Schedule]:
    """The instruction lists of schedule `key` for passes that take `times` (one entry, or one a stage), and its key.

    Only the automatic schedules depend on times; the name in their key gets a mark, so that equal keys still mean
    equal instruction lists. `after_input` is the share of a microbatch's activations that its W needs: the part that
    is held from I to W. Raises ShapeError as `build` does.
    """
    name, p, m, v = key
    if name not in AUTOMATIC:
        return key, build(*key)
    _check(name, p, m, v)
    schedule = automatic(p, m, times, AUTOMATIC[name] * p, after_input)
    return (f"{name}#{_mark(schedule)}", p, m, v), schedule


def in_groups(name: str, v: int) -> bool:
    """Whether microbatches pass the chunks in groups of p, which m must then be a multiple of."""
    return name == "interleaved" or (name == "zb-h1" and v > 1)


def _mark(schedule: Schedule) -> str:
    words = (f"{i.kind}{i.microbatch}.{i.chunk}" for order in schedule for i in order)
    return sha256(" ".join(words).encode()).hexdigest()[:12]


def _counted(m: int) -> str:
    return f"{m} microbatch{'es' if m != 1 else ''}"


def _check(name: str, p: int, m: int, v: int) -> None:
    if name not in SCHEDULES:
        raise ShapeError(f"unknown schedule {name!r}", fix=f"use one of {', '.join(SCHEDULES)}")
    for what, value in (("pipeline stages", p), ("microbatches", m), ("chunks a stage", v)):
        if value < 1:
            raise ShapeError(f"schedule {name} has {value} {what}, it needs 1 or more", fix=f"give {what}")
    if name == "none" and p > 1:
        raise ShapeError(f"schedule none has 1 stage, not pp={p}", fix="use pp=1, or schedule 1f1b")
    if name in TWO_CHUNKS and v != 2:
        raise ShapeError(f"schedule {name} has 2 chunks a stage, not vpp={v}", fix="use vpp=2")
    if name not in (*ANY_CHUNKS, *TWO_CHUNKS) and v > 1:
        raise ShapeError(f"schedule {name} has 1 chunk a stage, not vpp={v}", fix="use vpp=1, or schedule interleaved")
    if in_groups(name, v) and m % p:
        near = " or ".join(str(count) for count in (m // p * p, (m // p + 1) * p) if count)
        raise ShapeError(
            f"interleaving needs microbatches that pp divides: {_counted(m)}, pp={p}",
            fix=f"use {near} microbatches, or schedule 1f1b with vpp=1",
        )
    if name in ("dualpipe", "dualpipev") and m < 2 * p:
        raise ShapeError(
            f"schedule {name} needs 2 pp microbatches or more: {_counted(m)}, pp={p}",
            fix=f"use {2 * p} microbatches, or schedule zb-v",
        )
    if name == "dualpipe" and (p % 2 or m % 2):
        raise ShapeError(
            f"schedule dualpipe needs even numbers of stages and microbatches: pp={p}, {_counted(m)}",
            fix=f"use pp={p + p % 2} and {m + m % 2} microbatches, or schedule dualpipev",
        )
