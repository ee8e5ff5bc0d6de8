"""Calibration profiles: the constants of one GPU on one fabric under one software stack.

A profile is a YAML file in `calibration/profiles/`. Every constant carries value, unit, evidence kind, source and
residual; what each constant means is in `CONSTANTS`, and the equation that uses it in `costs`.
"""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from traincast.catalog import data_dir
from traincast.errors import DataError
from traincast.units import parse_quantity

CONSTANTS: Mapping[str, tuple[str, str]] = {
    "gemm.forward": ("ratio", "share of the dense peak that a long stream of forward tiles reaches"),
    "gemm.dgrad": ("ratio", "the same for input gradients"),
    "gemm.wgrad": ("ratio", "the same for weight gradients"),
    "gemm.ramp_k": ("count", "steps of K that a tile loses to prologue and epilogue"),
    "gemm.wave_weight": ("ratio", "share of an incomplete last wave that is paid"),
    "gemm.small_tile": ("ratio", "efficiency lost by each halving of the tile"),
    "attention.flash_forward": ("ratio", "share of the dense peak of a long flash attention forward"),
    "attention.flash_backward": ("ratio", "the same backward"),
    "attention.ramp": ("count", "tokens of keys at which flash attention reaches half its plateau"),
    "attention.head_ramp": ("count", "columns of a head at which flash attention reaches half its plateau"),
    "attention.diagonal": ("count", "tokens of work per query row that causal skipping cannot save"),
    "memory.efficiency": ("ratio", "share of the memory bandwidth that elementwise kernels reach"),
    "kernel.fixed": ("time", "start and drain of one kernel on the device"),
    "host.call": ("time", "time of the host per framework call (Python, dispatcher, autograd, launch)"),
    "host.collective": ("time", "time of the host per collective"),
    "optimizer.bytes_per_parameter": ("count", "memory traffic of one optimiser step per local parameter"),
    "step.fixed": ("time", "time of a step outside its operators: data, logging, timers, synchronisation"),
    "overlap.slowdown": ("ratio", "extra time of compute while NCCL runs beside it"),
    "collective.handover": ("time", "what a collective costs inside a layer beyond its own time"),
    "network.launch": ("time", "time of an empty collective (t0)"),
    "network.intra_latency": ("ratio", "factor on NCCL's latencies inside a node"),
    "network.intra_efficiency": ("ratio", "factor on NCCL's bandwidths inside a node"),
    "network.intra_mixing": ("ratio", "mixing term inside a node"),
    "network.inter_latency": ("ratio", "factor on NCCL's latencies across nodes"),
    "network.inter_efficiency": ("ratio", "factor on NCCL's bandwidths across nodes"),
    "network.inter_mixing": ("ratio", "mixing term across nodes"),
    "network.one_efficiency": ("ratio", "further factor across nodes for groups with one of several GPUs of a node"),
    "network.some_efficiency": ("ratio", "the same for groups with some of them, more than one"),
    "message.launch": ("time", "time of an empty send/recv pair, host synchronisation included"),
    "message.efficiency": ("ratio", "share of a NIC's raw rate that one message stream reaches"),
}
"""Name -> (dimension, meaning). A profile states all of them; `inherits` takes the rest from another profile."""


@dataclass(frozen=True)
class Constant:
    """One calibrated constant in SI, with the unit it was written in, its evidence, source and residual."""

    name: str
    value: float
    unit: str
    kind: str
    source: str
    residual: str | None = None


@dataclass(frozen=True)
class Traits:
    """What a software stack does, as its sources say: not numbers to fit.

    `nccl`: version family of the tuner's tables; `generation`: GPU generation of its caps. The others are fields of
    `model.operators.Block`, see there. `overlap_dp_in_pipeline`: gradient buckets may reduce during backward with more
    than one stage (SC21's scripts use the overlapping DDP with one stage only).
    """

    nccl: str = "2.8"
    generation: str = "ampere"
    fused_accumulation: bool = False
    overlap_tp: bool = False
    dropout: bool = True
    overlap_dp_in_pipeline: bool = True


@dataclass(frozen=True, eq=False)
class Profile:
    """One GPU on one fabric under one stack. Compared by identity: profiles are loaded once."""

    name: str
    gpu: str
    fabric: str
    stacks: tuple[str, ...]
    traits: Traits
    constants: Mapping[str, Constant]
    fitted_rows: frozenset[str]
    default_for: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> float:
        """Value of a constant in SI."""
        return self.constants[name].value

    def assumptions(self) -> tuple[str, ...]:
        """What a forecast takes from this profile with no measurement behind it: its fabric, its assumed constants."""
        assumed = [name for name, constant in self.constants.items() if constant.kind == "assumed"]
        share = f"{len(assumed)} of {len(self.constants)} constants of profile {self.name} are assumed"
        return (
            f"network constants of profile {self.name} are those of: {self.fabric}",
            f"{share}: {', '.join(assumed)}" if assumed else f"no constant of profile {self.name} is assumed",
        )

    def replaced(self, **values: float) -> "Profile":
        """A copy with some constants at other values (keys with `__` for the dot); for fits and studies."""
        constants = dict(self.constants)
        for key, value in values.items():
            name = key.replace("__", ".")
            old = constants[name]
            constants[name] = Constant(name, value, old.unit, "assumed", "replaced for a study")
        return Profile(
            self.name, self.gpu, self.fabric, self.stacks, self.traits, constants, self.fitted_rows, self.default_for
        )


def profiles_dir() -> Path:
    """Folder of the shipped profiles."""
    return data_dir() / "calibration" / "profiles"


@lru_cache
def load_profile(name_or_path: str) -> Profile:
    """Load a shipped profile by name, or any profile by path.

    Raises DataError for a missing file (with the nearest names), an unknown constant or a missing one.
    """
    path = Path(name_or_path)
    if path.suffix not in (".yaml", ".yml"):
        path = profiles_dir() / f"{name_or_path}.yaml"
    if not path.is_file():
        known = sorted(p.stem for p in profiles_dir().glob("*.yaml"))
        near = difflib.get_close_matches(name_or_path, known, 3, 0.3) or known
        raise DataError(f"no profile {name_or_path!r}", fix=f"use one of: {', '.join(near)}")
    return _read(path)


def _read(path: Path) -> Profile:
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        raw: dict[str, Any] = YAML(typ="safe", pure=True).load(path.read_text(encoding="utf-8"))
    except (YAMLError, UnicodeDecodeError, ValueError) as error:
        raise DataError(f"not a readable profile: {str(error).splitlines()[0]}", where=path.name) from error
    try:
        return _build(raw, path)
    except (KeyError, TypeError) as error:
        raise DataError(f"a profile lacks or misplaces {error}", where=path.name) from error


def _build(raw: dict[str, Any], path: Path) -> Profile:
    parent = load_profile(raw["inherits"]) if "inherits" in raw else None
    constants: dict[str, Constant] = dict(parent.constants) if parent else {}
    for name, entry in raw.get("constants", {}).items():
        if name not in CONSTANTS:
            near = difflib.get_close_matches(name, CONSTANTS, 1)
            raise DataError(f"unknown constant {name!r}", fix=f"did you mean {near}?", where=path.name)
        constants[name] = _constant(name, entry)
    missing = sorted(set(CONSTANTS) - set(constants))
    if missing:
        raise DataError(f"constants are missing: {', '.join(missing)}", fix="state or inherit them", where=path.name)
    return Profile(
        name=raw["name"],
        gpu=raw["gpu"],
        fabric=raw["fabric"],
        stacks=tuple(raw.get("stacks", ())),
        traits=Traits(**raw.get("traits", {})),
        constants=constants,
        fitted_rows=frozenset(raw.get("fitted_rows", ())),
        default_for=tuple(raw.get("default_for", ())),
    )


def _constant(name: str, entry: Mapping[str, Any]) -> Constant:
    dimension = CONSTANTS[name][0]
    unit = str(entry.get("unit", "1"))
    value = (
        float(entry["value"])
        if dimension in ("ratio", "count")
        else parse_quantity(f"{entry['value']} {unit}", dimension)
    )
    residual = entry.get("residual")
    return Constant(name, value, unit, entry["kind"], entry["source"], None if residual is None else str(residual))


def shipped_profiles() -> tuple[Profile, ...]:
    """All shipped profiles, by name."""
    return tuple(load_profile(p.stem) for p in sorted(profiles_dir().glob("*.yaml")))


def find_profile(gpu: str, stack: str | None) -> tuple[Profile, str | None]:
    """The profile of a GPU and stack, and a note when it is not that stack's own.

    Order: a profile that names the stack for this GPU; the GPU's default profile.
    """
    profiles = shipped_profiles()
    for p in profiles:
        if p.gpu == gpu and stack in p.stacks:
            return p, None
    for p in profiles:
        if gpu in p.default_for:
            reason = f"no profile for stack {stack!r}" if stack else "no stack stated"
            return p, f"{reason}: default profile {p.name} of {gpu}"
    raise DataError(
        f"no profile for GPU {gpu!r}",
        fix=f"calibrate one, or name a profile: {', '.join(p.name for p in profiles)}",
    )
