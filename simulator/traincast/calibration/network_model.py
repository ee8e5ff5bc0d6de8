"""Measured collectives as arrays: NCCL's choice once, then seconds for any values of a profile's constants.

Which algorithm runs does not depend on calibrated constants, so the parts of every point are worked out once, and
points that the same constants price form a class. A fit then costs a few array operations a step.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

from traincast.calibration.curves import Curve, CurvePoint
from traincast.calibration.ops import op_name
from traincast.calibration.place import Layout, NoPlaceError, Place, place_of
from traincast.costs.collectives import (
    Forced,
    NetworkConstants,
    Wires,
    choose,
    collective_seconds,
    message_seconds,
    wires,
)
from traincast.costs.collectives.message import message_parts
from traincast.costs.collectives.option import Choice, Parts, Terms, parts_of, total_seconds
from traincast.costs.collectives.select import terms_of
from traincast.costs.machine import Machine
from traincast.profile import Profile

Floats = npt.NDArray[np.float64]

MODELLED: Final = frozenset(
    {"all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "alltoall", "sendrecv"}
)
HALF_WIDTHS: Final = 1.96
"""Standard deviations in half of a 95 % interval."""

_VERSION: Final = re.compile(r"(?<![\d.<>])2\.\d{1,2}(?:\.\d+)?(?![\d])")
_ALGORITHMS: Final = frozenset({"ring", "tree", "nvls", "nvlstree", "collnetdirect", "collnetchain", "pat"})
_PROTOCOLS: Final = {"ll": "LL", "ll128": "LL128", "simple": "Simple"}


@dataclass(frozen=True)
class Setting:
    """How one curve is priced: where it ran, what is forced, NCCL's version, who launched (empty: not
    told). `notes` say what was assumed."""

    curve: Curve
    op: str
    place: Place
    forced: Forced
    nccl: str | None
    launch: str
    notes: tuple[str, ...]


@dataclass(frozen=True)
class PointClass:
    """Points that the same constants price: one representative of them, and their parts as arrays.

    `members` are their numbers among all points. A message has no choice of algorithm.
    """

    choice: Choice | None
    setting: Setting
    wires: Wires
    parts: Parts
    members: npt.NDArray[np.int64]


@dataclass(frozen=True)
class Points:
    """Points of several curves: measured seconds and the relative error of each (standard deviation), its curve, how
    NCCL runs it, and their classes."""

    size_bytes: Floats
    time_s: Floats
    noise: Floats
    curve: npt.NDArray[np.int64]
    settings: tuple[Setting, ...]
    how: tuple[str, ...]
    classes: tuple[PointClass, ...]

    def extra_launch_s(self, profile: Profile) -> Floats:
        """What the way of launching adds to each point [s]."""
        each = np.array([extra_launch_s(one, profile) for one in self.settings], dtype=np.float64)
        return np.asarray(each[self.curve])


def setting_of(curve: Curve) -> Setting:
    """Raises NoPlaceError where the hardware, the collective or the counts are not known."""
    op = op_name(curve.op)
    if op not in MODELLED:
        raise NoPlaceError(f"collective {curve.op or '(not stated)'!r} is not modelled")
    place = place_of(curve.gpu, curve.net, curve.nodes, curve.ranks, Layout(curve.node_gpus, curve.groups))
    notes = list(place.notes)
    nccl = version_in(curve.nccl)
    if nccl is None:
        notes.append("NCCL's version is not told: that of the profile")
    return Setting(curve, op, place, forced_by(curve.algo, curve.proto), nccl, curve.launch, tuple(notes))


def extra_launch_s(setting: Setting, profile: Profile) -> float:
    """What the way of launching adds [s]: the further GPUs that one process launches.

    Where a log of one node does not say who launched, it is as in the logs that the profile rests on.
    """
    further = setting.place.span.ranks_per_node - 1 if launch_of(setting, profile) == "single" else 0
    return profile["network.process_launch"] * further


def launch_of(setting: Setting, profile: Profile) -> str:
    """Who launched, as the log says or as is taken."""
    return setting.launch or (profile.launch if setting.place.span.nodes == 1 else "") or "process"


def version_in(text: str) -> str | None:
    """NCCL's version in a text such as "2.27.3" or "2.23 (dir name)"; None where it only names a bound or none."""
    found = _VERSION.search(text)
    return found.group(0) if found and "RCCL" not in text else None


@lru_cache(maxsize=256)
def forced_by(algo: str, proto: str) -> Forced:
    """What the columns `algo` and `proto` force; "auto" with or without remarks forces nothing."""

    def named(text: str, known: Iterable[str]) -> list[str]:
        if "auto" in text.lower():
            return []
        words = re.split(r"[^a-z0-9]+", text.lower())
        return [word for word in words if word in known]

    algorithms = frozenset(named(algo, _ALGORITHMS))
    return Forced(algorithms, frozenset(_PROTOCOLS[word] for word in named(proto, _PROTOCOLS)))


def constants_of(setting: Setting, profile: Profile) -> NetworkConstants:
    """The network constants of a profile for one curve: of its GPUs per node and NCCL version.

    A group that runs by itself has no siblings that drive the other NICs: it counts as one of whole nodes.
    """
    place = setting.place
    node_gpus = place.gpus_per_node if place.siblings else place.span.ranks_per_node
    network = Machine(place.gpu, profile, "bf16", node_gpus).network
    return replace(network, nccl=setting.nccl) if setting.nccl else network


def predicted_s(setting: Setting, point: CurvePoint, profile: Profile) -> tuple[float, str]:
    """Forecast of one point [s], and how NCCL runs it."""
    c, launch = constants_of(setting, profile), extra_launch_s(setting, profile)
    if setting.op == "sendrecv":
        return launch + message_seconds(point.size_bytes, setting.place.pair, c), "send/recv"
    span = setting.place.span
    choice = choose(setting.op, point.size_bytes, wires(span, c), c, setting.forced)
    seconds = collective_seconds(setting.op, point.size_bytes, span, c, setting.forced)
    return launch + seconds, f"{choice.algorithm} {choice.protocol}"


def points_of(settings: Sequence[Setting], profile: Profile, tables: str | None = None) -> Points:
    """All usable points of curves as arrays; `profile` gives NCCL's version where a curve does not (or `tables`)."""
    measured: list[CurvePoint] = []
    curve: list[int] = []
    how: list[str] = []
    found: dict[tuple[object, ...], list[tuple[int, Choice | None, Setting, Parts]]] = {}
    for number, setting in enumerate(settings):
        c = constants_of(setting, profile)
        if tables and not setting.nccl:
            c = replace(c, nccl=tables)
        w = wires(setting.place.span, c)
        for point in setting.curve.usable:
            choice = None
            if setting.op == "sendrecv":
                parts, _ = message_parts(point.size_bytes, setting.place.pair, c)
                key: tuple[object, ...] = ("message", setting.place.pair.nodes > 1)
            else:
                choice = choose(setting.op, point.size_bytes, w, c, setting.forced)
                parts = parts_of(choice, point.size_bytes)
                further = choice.protocol if choice.algorithm == "exchange" else max(w.ranks, 8)
                key = (choice.algorithm, w.nodes > 1, w.holds, further)
            found.setdefault(key, []).append((len(measured), choice, setting, parts))
            how.append(f"{choice.algorithm} {choice.protocol}" if choice else "send/recv")
            measured.append(point)
            curve.append(number)
    return Points(
        size_bytes=np.array([point.size_bytes for point in measured]),
        time_s=np.array([point.time_us * 1e-6 for point in measured]),
        noise=np.array([point.half_width / HALF_WIDTHS for point in measured]),
        curve=np.array(curve, dtype=np.int64),
        settings=tuple(settings),
        how=tuple(how),
        classes=tuple(_class(rows, profile) for rows in found.values()),
    )


def _class(rows: Sequence[tuple[int, Choice | None, Setting, Parts]], profile: Profile) -> PointClass:
    columns = {one.name: np.array([getattr(parts, one.name) for *_, parts in rows]) for one in fields(Parts)}
    _, choice, setting, _ = rows[0]
    w = wires(setting.place.span, constants_of(setting, profile))
    return PointClass(choice, setting, w, Parts(**columns), np.array([row[0] for row in rows], dtype=np.int64))


def class_terms(one: PointClass, c: NetworkConstants) -> Terms:
    """The constants that price a class."""
    if one.choice is None:
        return message_parts(1.0, one.setting.place.pair, c)[1]
    return terms_of(one.choice, one.wires, c)


def forecast_points(points: Points, profile: Profile) -> Floats:
    """Forecasts of all points under a profile [s]."""
    seconds = np.zeros(len(points.time_s))
    if points.classes:
        c = constants_of(points.classes[0].setting, profile)
        for one in points.classes:
            seconds[one.members] = total_seconds(one.parts, class_terms(one, c))
    return np.asarray(seconds + points.extra_launch_s(profile))
