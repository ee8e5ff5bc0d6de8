"""Writes a fitted profile as YAML that `load_profile` reads: the base it inherits, and the constants that data told."""

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from traincast.profile import CONSTANTS, Interval, Profile, Traits

_UNIT: Final = {"time": ("us", 1e-6), "ratio": ("", 1.0), "count": ("", 1.0), "size": ("MiB", 2.0**20)}
_WORD: Final = re.compile(r"(?!(?:true|false|yes|no|on|off|null|nan|y|n)$)[A-Za-z][\w.-]*", re.IGNORECASE | re.ASCII)
_DIGITS: Final = 4
_MOST_NAMES: Final = 5


@dataclass(frozen=True)
class Written:
    """One constant as the file states it: value and standard error in SI, evidence, source, residual.

    `curves` names the measured collectives that told it where those are not the profile's own.
    """

    name: str
    value: float
    kind: str
    source: str
    residual: str | None = None
    error: float | None = None
    curves: tuple[str, ...] = ()


@dataclass(frozen=True)
class Heading:
    """What a profile's file says beside its constants. `comments` stand at its top; `fitted_on` says of which results
    it is (`files`, and what was stated for them), `correlations` which constants the fit could hardly tell apart."""

    name: str
    gpu: str
    fabric: str
    base: str
    traits: Mapping[str, object]
    collective_gpus: tuple[str, ...] = ()
    fabrics: tuple[str, ...] = ()
    launch: str = ""
    fitted_curves: tuple[str, ...] = ()
    fitted_on: Mapping[str, object] = field(default_factory=dict)
    comments: tuple[str, ...] = ()
    correlations: tuple[tuple[str, str, float], ...] = ()


def profile_text(head: Heading, constants: Sequence[Written], intervals: Mapping[str, Interval]) -> str:
    """The file's text."""
    lines = [f"# {comment}" for comment in head.comments]
    lines += [
        f"name: {_word(head.name)}",
        f"inherits: {_text(head.base)}",
        f"gpu: {head.gpu}",
        f"fabric: {_text(head.fabric)}",
    ]
    if head.collective_gpus:
        parts = [f"gpus: [{', '.join(head.collective_gpus)}]", f"fabrics: [{', '.join(head.fabrics)}]"]
        parts += [f"launch: {head.launch}"] if head.launch else []
        lines.append(f"collectives: {{{', '.join(parts)}}}")
    lines.append(f"traits: {{{', '.join(f'{key}: {_scalar(value)}' for key, value in head.traits.items())}}}")
    if head.fitted_on:
        lines += ["fitted_on:", *(f"  {key}: {json.dumps(value)}" for key, value in head.fitted_on.items())]
    if head.fitted_curves:
        lines += ["fitted_curves:", *(f"  - {_word(name)}" for name in head.fitted_curves)]
    if head.correlations:
        pairs = (f"  - {{of: {one}, with: {other}, r: {r:.2f}}}" for one, other, r in head.correlations)
        lines += ["correlations:", *pairs]
    if intervals:
        lines += ["intervals:", *(line for kind, one in intervals.items() for line in _interval(kind, one))]
    lines += ["", "constants:", *(_constant(one) for one in constants)] if constants else ["", "constants: {}"]
    return "\n".join(lines) + "\n"


def with_intervals(text: str, intervals: Mapping[str, Interval]) -> str:
    """A profile's text with other intervals, in place of those it has or before its constants."""
    block = ["intervals:", *(line for kind, one in intervals.items() for line in _interval(kind, one))]
    lines = text.splitlines()
    start = next((n for n, line in enumerate(lines) if line.startswith("intervals:")), None)
    if start is not None:
        end = next((n for n in range(start + 1, len(lines)) if lines[n][:1].strip()), len(lines))
        while end > start and not lines[end - 1].strip():
            end -= 1
        lines[start:end] = block if intervals else []
    elif intervals:
        place = next((n for n, line in enumerate(lines) if line.startswith("constants:")), len(lines))
        lines[place:place] = [*block, ""]
    return "\n".join(lines) + "\n"


def traits_of(profile: Profile, **changed: object) -> dict[str, object]:
    """Traits of a profile, some of them changed, without those at their defaults: a file that states any states all."""
    usual = vars(Traits())
    found = {**vars(profile.traits), **changed}
    return {key: value for key, value in found.items() if value != usual[key] or key in ("nccl", "generation")}


def rounded(value: float) -> float:
    """A value with four digits."""
    return _significant(value, _DIGITS)


def _significant(value: float, digits: int) -> float:
    return 0.0 if value == 0.0 else round(value, digits - 1 - math.floor(math.log10(abs(value))))


def names_text(names: Iterable[str]) -> str:
    """Some names, and how many more there are."""
    found = list(names)
    shown = ", ".join(found[:_MOST_NAMES])
    return shown if len(found) <= _MOST_NAMES else f"{shown} and {len(found) - _MOST_NAMES} more"


def counted(count: int, name: str) -> str:
    """A number of things: `1 curve`, `2 curves`."""
    return f"{count} {name}{'' if count == 1 else 's'}"


def fitted_on(path: Path) -> dict[str, object]:
    """What a fitted profile says of its results: `files`, and `gpu`, `net`, `op` where they were stated; empty where it
    says nothing.

    The file is one that `load_profile` has read.
    """
    from ruamel.yaml import YAML

    raw = YAML(typ="safe", pure=True).load(path.read_text(encoding="utf-8"))
    found = raw.get("fitted_on") if isinstance(raw, dict) else None
    return dict(found) if isinstance(found, dict) else {}


def _constant(one: Written) -> str:
    unit, scale = _UNIT[CONSTANTS[one.name][0]]
    parts = [f"value: {rounded(one.value / scale):.10g}"]
    parts += [f"unit: {unit}"] if unit else []
    parts += [f"kind: {one.kind}", f"source: {_text(one.source)}"]
    parts += [f"residual: {_text(one.residual)}"] if one.residual else []
    parts += [f"error: {_significant(one.error / scale, 2):.10g}"] if one.error is not None else []
    parts += [f"curves: [{', '.join(map(_word, one.curves))}]"] if one.curves else []
    return f"  {one.name}:\n    {{{', '.join(parts)}}}"


def _interval(kind: str, one: Interval) -> list[str]:
    lines = [
        f"  {kind}:",
        f"    level: {one.level:g}",
        f"    rows: {one.rows}",
        f"    how: {_text(one.how)}",
        "    bands:",
    ]
    for band in one.bands:
        bound = "" if math.isinf(band.up_to_bytes) else f"up_to: {band.up_to_bytes / 1024:g} KiB, "
        lines.append(f"      - {{{bound}low: {band.low:.3f}, high: {band.high:.3f}}}")
    return lines


def _scalar(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return json.dumps(value) if isinstance(value, str) and value[:1].isdigit() else str(value)


def _word(text: str) -> str:
    """Text as YAML reads it back: bare where it is a plain word, else in quotes."""
    return text if _WORD.fullmatch(text) else _text(text)


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
