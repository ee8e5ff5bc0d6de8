"""Calibration profiles: the constants of one GPU on one fabric under one software stack.

A profile is a YAML file in `calibration/profiles/`. Every constant carries value, unit, evidence kind, source and
residual; what each constant means is in `CONSTANTS`, and the equation that uses it in `costs`.
"""

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import Any

from traincast.catalog import data_dir
from traincast.errors import DataError
from traincast.intervals import Band as Band
from traincast.intervals import Interval as Interval
from traincast.intervals import read_interval
from traincast.profilerules import COLLECTIVES_KEYS, CONSTANT_KEYS, KEYS, KINDS, range_of
from traincast.profiletext import Entry, Faults, read_profile_text
from traincast.traits import Traits as Traits

CONSTANTS: Mapping[str, tuple[str, str]] = {
    "gemm.forward": ("ratio", "share of the dense peak that a long stream of forward tiles reaches"),
    "gemm.dgrad": ("ratio", "the same for input gradients"),
    "gemm.wgrad": ("ratio", "the same for weight gradients"),
    "gemm.ramp_k": ("count", "steps of K that a tile loses to prologue and epilogue"),
    "gemm.wave_weight": ("ratio", "share of an incomplete last wave that is paid"),
    "gemm.fp8": ("ratio", "share of its own peak that an fp8 product reaches, by that of a half-precision one"),
    "gemm.rowwise": ("ratio", "rate of an fp8 product with a scale for each row, by that of one with two scales"),
    "gemm.small_tile": ("ratio", "efficiency lost by each halving of the tile"),
    "gemm.unaligned": ("ratio", "share of the dense peak of products whose rows are no multiples of 16 bytes"),
    "attention.flash_forward": ("ratio", "share of the dense peak of a long flash attention forward"),
    "attention.flash_backward": ("ratio", "the same backward"),
    "attention.ramp": ("count", "tokens of keys at which flash attention reaches half its plateau"),
    "attention.head_ramp": ("count", "columns of a head at which flash attention reaches half its plateau"),
    "attention.diagonal": ("count", "tokens of work per query row that causal skipping cannot save"),
    "attention.dropout": ("ratio", "extra time of a flash attention kernel that drops scores"),
    "memory.efficiency": ("ratio", "share of the memory bandwidth that elementwise kernels reach"),
    "memory.columns": ("ratio", "rate of a compiled kernel that casts along columns, by that of one along rows"),
    "kernel.fixed": ("time", "start and drain of one kernel on the device"),
    "host.call": ("time", "time of the host per framework call (Python, dispatcher, autograd, launch)"),
    "host.backward": ("ratio", "time of a call that autograd issues in a backward pass, by that of another"),
    "host.update": ("time", "time of one node's cores to update a million parameters (Adam in single precision)"),
    "host.collective": ("time", "time of the host per collective"),
    "optimizer.bytes_per_parameter": ("count", "memory traffic of one optimiser step per local parameter"),
    "step.fixed": ("time", "time of a step outside its operators: data, logging, timers, synchronisation"),
    "overlap.slowdown": ("ratio", "extra time of compute while NCCL runs beside it"),
    "overlap.split_sms": ("count", "multiprocessors that a split reduce-scatter takes from its product"),
    "pass.fixed": ("time", "what each pass of a pipeline costs beside its operators: the host exchanges and waits"),
    "collective.handover": ("time", "what a collective costs inside a layer beyond its own time"),
    "collective.skew": ("time", "spread (standard deviation) with which ranks arrive at a collective inside a layer"),
    "network.launch": ("time", "time of an empty collective (t0)"),
    "network.intra_latency": ("ratio", "factor on NCCL's latencies inside a node"),
    "network.intra_efficiency": ("ratio", "factor on NCCL's bandwidths inside a node"),
    "network.intra_mixing": ("ratio", "mixing term inside a node"),
    "network.inter_latency": ("ratio", "factor on NCCL's latencies across nodes"),
    "network.inter_efficiency": ("ratio", "factor on NCCL's bandwidths across nodes"),
    "network.inter_mixing": ("ratio", "mixing term across nodes"),
    "network.one_efficiency": ("ratio", "further factor across nodes for groups with one of several GPUs of a node"),
    "network.some_efficiency": ("ratio", "the same for groups with some of them, more than one"),
    "network.process_launch": ("time", "launch of each further GPU that one process drives (nccl-tests -g 8)"),
    "network.base_latency": ("ratio", "further factor on NCCL's base latencies"),
    "network.edge_steps": ("count", "steps of a ring that a chunk takes beyond those that carry it on"),
    "network.nvls_latency": ("ratio", "factor on NCCL's latency of NVLink SHARP"),
    "network.nvls_growth": ("ratio", "share by which that latency grows with each doubling of the domain beyond 8"),
    "network.nvls_efficiency": ("ratio", "factor on the bandwidth of NVLink SHARP"),
    "network.nvls_mixing": ("ratio", "mixing term of NVLink SHARP"),
    "network.hop": ("time", "latency of a network hop beyond NCCL's and the cables'"),
    "network.ring_hop": ("time", "the same again in rings"),
    "network.ring_overlap": ("ratio", "how far latency and transfer of a ring overlap, per doubling beyond 8 ranks"),
    "network.wire_efficiency": ("ratio", "share of the NIC rate that NCCL assumes which the fabric carries"),
    "sharded.efficiency": ("ratio", "share of bandwidths across nodes that ZeRO-3's gathers and reductions reach"),
    "exchange.launch": ("time", "time of an empty all-to-all beyond that of another collective"),
    "exchange.handshake": ("time", "time that blocks above 16 KiB cost beyond smaller ones"),
    "exchange.peer": ("time", "latency that each further peer of an all-to-all adds"),
    "exchange.efficiency": ("ratio", "further factor on bandwidths inside a node for all-to-all"),
    "exchange.inter_efficiency": ("ratio", "the same across nodes"),
    "exchange.mixing": ("ratio", "mixing term of all-to-all"),
    "exchange.own_share": ("ratio", "time of a rank's own block in an all-to-all beside that of one sent"),
    "message.launch": ("time", "time of an empty send/recv pair, host synchronisation included"),
    "message.efficiency": ("ratio", "share of a NIC's raw rate that one message stream reaches"),
    "footprint.context": ("size", "CUDA context, loaded kernels and cuBLAS workspaces of one process"),
    "footprint.collective": ("size", "buffers of one communicator that runs collectives"),
    "footprint.message": ("size", "buffers of the connections to the neighbouring stages"),
    "footprint.fragmentation": ("ratio", "what the allocator holds in excess, as a share of activations and workspace"),
    "footprint.reserve": ("size", "what else the stack holds for the whole step, such as communication buckets"),
    "footprint.logit": ("count", "bytes that each logit takes around the loss, its gradient included"),
}
"""Name -> (dimension, meaning). A profile states all of them; `inherits` takes the rest from another profile."""


COLLECTIVE = ("network.", "exchange.", "message.")
"""What the names of constants begin with that measured collectives tell."""

DEFAULTS: Mapping[str, tuple[object, ...] | str] = {
    "zero_stage": (0, 1, 2, 3),
    "sequence_parallel": (False, True),
    "overlap_dp": (False, True),
    "overlap_params": (False, True),
    "overlap_tp": ("none", "bulk", "split", "async"),
    "p2p": ("blocking", "async"),
    "gradient_dtype": ("fp32", "bf16", "fp16"),
    "recompute": ("none", "selective", "full", "full_but_qkv"),
    "offload_states": ("none", "optimizer"),
    "bucket": "size",
}
"""What a profile may say that its stack does where a row or a scenario is silent, by the scenario's name for it, and
the values that it may have (or the dimension of the quantity)."""


@dataclass(frozen=True)
class Default:
    """What a stack does where nobody says otherwise, and where that is written; up to `max_tp` tensor-parallel ranks,
    where it does something else with more."""

    value: Any
    source: str
    max_tp: float = math.inf


@dataclass(frozen=True)
class Constant:
    """One calibrated constant in SI, with the unit it was written in, its evidence, source and residual.

    `error` is its standard error in SI where a fit found one, `curves` names the measured collectives that told it.
    """

    name: str
    value: float
    unit: str
    kind: str
    source: str
    residual: str | None = None
    error: float | None = None
    curves: frozenset[str] = frozenset()


@dataclass(frozen=True, eq=False)
class Profile:
    """One GPU on one fabric under one stack. Compared by identity: profiles are loaded once.

    `collective_gpus` and `fabrics` say whose measured collectives it prices (calibration.choice), `launch` who launched
    on one node where a log does not say, `own_curves` which curves its file was fitted on, `intervals` how far off it
    is, by kind (`step`; `inside`, `across` nodes), `defaults` what the stack does where a row or a scenario is silent
    (`DEFAULTS`), `correlations` which pairs of its constants a fit could hardly tell apart, and how they hang together,
    `also_for` further GPUs that the rows of its stacks ran on.
    """

    name: str
    gpu: str
    fabric: str
    stacks: tuple[str, ...]
    traits: Traits
    constants: Mapping[str, Constant]
    fitted_rows: frozenset[str]
    default_for: tuple[str, ...] = ()
    collective_gpus: tuple[str, ...] = ()
    fabrics: tuple[str, ...] = ()
    launch: str = ""
    own_curves: frozenset[str] = frozenset()
    intervals: Mapping[str, Interval] = field(default_factory=dict)
    defaults: Mapping[str, Default] = field(default_factory=dict)
    correlations: tuple[tuple[str, str, float], ...] = ()
    also_for: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> float:
        """Value of a constant in SI."""
        return self.constants[name].value

    @property
    def fitted_curves(self) -> frozenset[str]:
        """Every curve that told it something: its own, and those of the constants that it inherits and uses."""
        return self.own_curves.union(*(constant.curves for constant in self.constants.values()))

    def stack_defaults(self, tp: int, vpp: int) -> dict[str, Any]:
        """Values of `defaults` that say something for a shape.

        Without tensor parallelism there is no sequence to split and nothing of it to overlap; messages overlap where
        chunks interleave.
        """
        silent = {"sequence_parallel": tp == 1, "overlap_tp": tp == 1, "p2p": vpp == 1}
        told = {name: one.value for name, one in self.defaults.items() if tp <= one.max_tp}
        return {name: value for name, value in told.items() if not silent.get(name, False)}

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
        return replace(self, constants=constants)


def profiles_dir() -> Path:
    """Folder of the shipped profiles."""
    return data_dir() / "calibration" / "profiles"


@lru_cache
def load_profile(name_or_path: str) -> Profile:
    """Load a shipped profile by name, or any profile by path.

    Raises DataError, with file and line, for a missing file (with the nearest names), for unknown keys, for a constant
    that is unknown, missing or cannot be, and for a file that inherits itself.
    """
    path = _path_of(name_or_path)
    if not path.is_file():
        known = sorted(p.stem for p in profiles_dir().glob("*.yaml"))
        near = difflib.get_close_matches(name_or_path, known, 3, 0.3) or known
        raise DataError(f"no profile {name_or_path!r}", fix=f"use one of: {', '.join(near)}")
    return _build(read_profile_text(path), path)


def _path_of(name_or_path: str, folder: Path | None = None) -> Path:
    """The file of a profile: a shipped one by its name, another by its path, which starts at `folder`."""
    path = Path(name_or_path)
    if path.suffix not in (".yaml", ".yml"):
        return profiles_dir() / f"{name_or_path}.yaml"
    return path if folder is None else folder / path


def _parent(raw: Entry, path: Path) -> Profile | None:
    """The profile that a file inherits; a path in `inherits` starts at the file's own folder."""
    entry, seen = raw.get("inherits"), [path.resolve()]
    if entry is None:
        return None
    first = parent = _path_of(entry.text(), path.parent)
    while parent.is_file() and parent.parent != profiles_dir():  # what is shipped inherits what is shipped
        if parent.resolve() in seen:
            raise entry.wrong("this profile inherits itself", "name another profile after 'inherits'")
        seen.append(parent.resolve())
        further = read_profile_text(parent).get("inherits")
        if further is None:
            break
        parent = _path_of(further.text(), parent.parent)
    if not first.is_file():
        raise entry.wrong(f"no profile {entry.text()!r}", "name a shipped profile, or a file by its path from this one")
    return load_profile(entry.text() if first.parent == profiles_dir() else str(first))


def _build(raw: Entry, path: Path) -> Profile:
    """The profile of a file. Raises all that is wrong in its keys, head, traits, defaults and constants at once."""
    parent, faults = _parent(raw, path), Faults()
    faults.known(raw, KEYS, "key")
    none: tuple[str, ...] = ()
    own = frozenset(faults.tried(lambda: raw.texts("fitted_curves"), none))
    name, gpu, fabric = (faults.tried(lambda key=key: raw.need(key).text(), "") for key in ("name", "gpu", "fabric"))  # type: ignore[misc]
    constants = _constants(raw, parent, own, faults)
    traits = faults.tried(lambda: _traits(raw, parent), Traits())
    defaults: dict[str, Default] = faults.tried(lambda: _defaults(raw), {})
    collectives = raw.get("collectives") or Entry({}, ("collectives",), raw.source)
    faults.tried(lambda: faults.known(collectives, COLLECTIVES_KEYS, "key of collectives"), None)
    faults.end()
    launch = collectives.get("launch")
    return Profile(
        name=name,
        gpu=gpu,
        fabric=fabric,
        stacks=raw.texts("stacks"),
        traits=traits,
        constants=constants,
        fitted_rows=frozenset(raw.texts("fitted_rows")),
        default_for=raw.texts("default_for"),
        collective_gpus=collectives.texts("gpus"),
        fabrics=collectives.texts("fabrics"),
        launch=launch.text() if launch else "",
        own_curves=own,
        intervals={kind: read_interval(entry) for kind, entry in raw.below("intervals")},
        also_for=raw.texts("also_for"),
        correlations=tuple(
            (one.need("of").text(), one.need("with").text(), one.need("r").number()) for one in raw.each("correlations")
        ),
        defaults={**(parent.defaults if parent else {}), **defaults},
    )


def _constants(raw: Entry, parent: Profile | None, own: frozenset[str], faults: Faults) -> dict[str, Constant]:
    """The parent's constants with the file's own; what is wrong with any of them goes to `faults`."""
    constants: dict[str, Constant] = dict(parent.constants) if parent else {}
    stated = faults.tried(lambda: raw.below("constants"), None)
    for name, entry in stated or ():
        found = faults.tried(lambda name=name, entry=entry: _constant(name, entry, own, faults), None)  # type: ignore[misc]
        if found is not None:
            constants[name] = found
    missing = sorted(set(CONSTANTS) - set(constants) - {name for name, _ in stated or ()})
    if missing and stated is not None and not faults.found:
        what = f"constants are missing: {', '.join(missing)}"
        faults.found.append(raw.wrong(what, "state them, or name a profile to inherit"))
    return constants


def _traits(raw: Entry, parent: Profile | None) -> Traits:
    """The traits that a file states, the others as usual; the parent's where it states none at all."""
    if parent is not None and raw.get("traits") is None:
        return parent.traits
    usual = vars(Traits())
    found: dict[str, Any] = {}
    for name, entry in raw.below("traits"):
        entry.one_of(usual, "trait")
        kind = type(usual[name])
        found[name] = entry.text() if kind is str else entry.value
        if not isinstance(found[name], kind):
            raise entry.wrong(f"trait {name} cannot be {entry.value!r}", "write true or false")
    return Traits(**found)


def _defaults(raw: Entry) -> dict[str, Default]:
    found = {}
    for name, entry in raw.below("defaults"):
        entry.one_of(DEFAULTS, "default")
        value, source, most = _default(name, entry.need("value")), entry.need("source").text(), entry.get("max_tp")
        found[name] = Default(value, source, most.number() if most else math.inf)
    return found


def _default(name: str, entry: Entry) -> object:
    allowed = DEFAULTS[name]
    if isinstance(allowed, str):
        return entry.quantity(allowed, what=f"default {name}")
    if (type(entry.value), entry.value) not in [(type(one), one) for one in allowed]:
        shown = ", ".join(str(one).lower() for one in allowed)
        raise entry.wrong(f"default {name} cannot be {entry.value!r}", f"use one of {shown}")
    return entry.value


def _constant(name: str, entry: Entry, own: frozenset[str], faults: Faults) -> Constant:
    entry.one_of(CONSTANTS, "constant")
    faults.known(entry, CONSTANT_KEYS, "key of a constant")
    value, unit, kind = entry.need("value"), entry.get("unit"), entry.need("kind")
    source, residual, error = entry.need("source").text(), entry.get("residual"), entry.get("error")
    faults.tried(lambda: _known_kind(kind), None)
    told = kind.value == "measured" and name.startswith(COLLECTIVE)
    curves = frozenset(entry.texts("curves")) or (own if told else frozenset())
    unit_text, left = unit.text() if unit else "1", residual.text() if residual else None
    spread = _amount(error, unit, name) if error else None
    if error and spread is not None and spread < 0:
        raise error.wrong(f"{error.name} is {error.value}", "write a standard error, from 0 on")
    amount = _amount(value, unit, name)
    if not range_of(name).holds(amount):
        raise value.wrong(f"{value.name} cannot be {value.value}: {CONSTANTS[name][1]}", range_of(name).form)
    return Constant(name, amount, unit_text, kind.text(), source, left, spread, curves)


def _known_kind(kind: Entry) -> None:
    if kind.text() not in KINDS:
        near = difflib.get_close_matches(kind.text(), KINDS, 1)
        hint = f"did you mean {near[0]}? " if near else ""
        fix = f"{hint}use measured (by a benchmark of that very thing), derived (from whole steps) or assumed"
        raise kind.wrong(f"{kind.name} cannot be {kind.text()!r}", fix)


def _amount(entry: Entry, unit: Entry | None, name: str) -> float:
    """A number of a constant in SI."""
    dimension, number = CONSTANTS[name][0], entry.number()
    return number if dimension in ("ratio", "count") else entry.quantity(dimension, unit.text() if unit else "")


def shipped_profiles() -> tuple[Profile, ...]:
    """All shipped profiles, by name."""
    return tuple(load_profile(p.stem) for p in sorted(profiles_dir().glob("*.yaml")))


def find_profile(gpu: str, stack: str | None) -> tuple[Profile, str | None]:
    """The profile of a GPU and stack, and a note when it is not that stack's own.

    Order: a profile that names the stack for this GPU (`*` in its names stands for anything, such as a version; where
    several fit, the one with most letters of its own); the GPU's default profile.
    """
    profiles = shipped_profiles()
    own = [(pattern, p) for p in profiles if gpu in (p.gpu, *p.also_for) for pattern in p.stacks]
    named = [(pattern, p) for pattern, p in own if stack and fnmatchcase(stack, pattern)]
    if named:
        return max(named, key=lambda one: len(one[0].replace("*", "")))[1], None
    for p in profiles:
        if gpu in p.default_for:
            reason = f"no profile for stack {stack!r}" if stack else "no stack stated"
            return p, f"{reason}: default profile {p.name} of {gpu}"
    raise DataError(
        f"no profile for GPU {gpu!r}",
        fix=f"calibrate one, or name a profile: {', '.join(p.name for p in profiles)}",
    )
