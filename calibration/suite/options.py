"""What a run is asked for: the command line of the suite."""

import argparse
import math
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import NoReturn

PARTS = ("collectives", "gemm", "attention", "memory", "optimizer", "launch", "setup", "overlap")
OPS = ("all_reduce", "all_gather", "reduce_scatter", "alltoall", "broadcast", "sendrecv")
QUICK_S, FULL_S = 150.0, 1800.0
"""Budgets; a quick run leaves half a minute of its three for the start of the processes."""

GPU_WITHIN, CPU_WITHIN = 0.02, 0.1
"""Stability where none is asked for: processes that share cores and a scheduler are not steady to 2 %."""

LARGEST_BYTES = 2**42
"""Largest message that may be asked for."""

_SCALE = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 2**10, "mi": 2**20, "gi": 2**30}


class OptionError(ValueError):
    """A command line that cannot be; the text says what is wrong and, after a semicolon, what to write."""


@dataclass(frozen=True)
class Options:
    """Everything that shapes a run; sizes of axes that are None are chosen from the world."""

    output: Path
    quick: bool = False
    budget_s: float = FULL_S
    resume: bool = False
    backend: str | None = None
    sizes: tuple[tuple[str, int | None], ...] = ()
    order: str = "tp-cp-ep-dp-pp"
    least_bytes: int = 4
    most_bytes: int | None = None
    ops: tuple[str, ...] = OPS
    only: tuple[str, ...] = PARTS
    hidden: tuple[int, ...] = ()
    tokens: tuple[int, ...] = ()
    stability: float | None = None

    def within(self, gpu: bool) -> float:
        """Half width of the median that is asked for: what was given, else what such a machine can keep."""
        return self.stability if self.stability is not None else GPU_WITHIN if gpu else CPU_WITHIN


def size_bytes(text: str) -> int:
    """Bytes of ``4``, ``64KiB``, ``1M``, ``4GiB``; raises ValueError."""
    found = re.fullmatch(r"(\d+)\s*([kmg]i?|)b?", text.strip().lower())
    if found is None:
        raise ValueError(f"{text!r} is no size; write 4, 64KiB or 4GiB")
    if len(found.group(1)) > 18:
        raise ValueError(f"{text[:20]!r}... is no size; write 4, 64KiB or 4GiB")
    return int(found.group(1)) * _SCALE[found.group(2)]


def parse(arguments: Sequence[str]) -> Options:
    """Options of a command line; ends the process with 2 and a message where it is wrong."""
    try:
        return checked(arguments)
    except OptionError as error:
        parser = _parser()
        parser.print_usage(sys.stderr)
        parser.exit(2, f"{parser.prog}: {error}\n")


def checked(arguments: Sequence[str]) -> Options:
    """Options of a command line. Raises OptionError where it is wrong."""
    given = _parser().parse_args(arguments)
    budget_s = (QUICK_S if given.quick else FULL_S) if given.budget is None else given.budget
    if not (math.isfinite(budget_s) and budget_s > 0):
        raise OptionError(f"--budget: {budget_s:g} is no time; give a number of seconds above 0")
    if given.stability is not None and not 0 < given.stability < 1:
        raise OptionError(f"--stability: {given.stability:g} is no share; give one between 0 and 1, such as 0.02")
    _check_names("--only", given.only, PARTS)
    _check_names("--ops", given.ops, OPS)
    least_bytes = max(4, given.min_size)
    most_bytes = given.max_size
    for name, size in (("--min-size", least_bytes), ("--max-size", most_bytes or least_bytes)):
        if size > LARGEST_BYTES:
            raise OptionError(f"{name}: {size} bytes are more than any message; give 4GiB or less")
    if most_bytes is not None and most_bytes < least_bytes:
        least = f"{least_bytes} bytes"
        raise OptionError(f"--max-size: {most_bytes} bytes is below the smallest message; give {least} or more")
    return Options(
        output=given.output,
        quick=given.quick,
        budget_s=budget_s,
        resume=given.resume,
        backend=given.backend,
        sizes=tuple((axis, getattr(given, axis)) for axis in ("tp", "cp", "pp", "dp", "ep", "etp")),
        order=given.order,
        least_bytes=least_bytes,
        most_bytes=most_bytes,
        ops=tuple(given.ops),
        only=tuple(given.only),
        hidden=tuple(given.hidden),
        tokens=tuple(given.tokens),
        stability=given.stability,
    )


def _check_names(option: str, names: Sequence[str], known: Sequence[str]) -> None:
    if not names:
        raise OptionError(f"{option}: names nothing; give some of {', '.join(known)}")
    for name in names:
        if name not in known:
            near = get_close_matches(name, known, 1)
            what = f"did you mean {near[0]}? There are " if near else "there are "
            raise OptionError(f"{option}: there is no {name!r}; {what}{', '.join(known)}")


class _Parser(argparse.ArgumentParser):
    """A parser that raises instead of ending the process."""

    def error(self, message: str) -> NoReturn:
        text = message.removeprefix("argument ")
        raise OptionError(text if ";" in text else f"{text}; run.py --help lists the options")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="run.py", description="Microbenchmarks of a cluster under torchrun, srun or alone; JSON lines out."
    )
    add = parser.add_argument
    add("-o", "--output", type=Path, required=True, metavar="FILE", help="records are appended to FILE as they come")
    add("--quick", action="store_true", help="the most telling part, within three minutes on a node")
    add("--budget", type=float, metavar="SECONDS", help=f"default {FULL_S:.0f}, with --quick {QUICK_S:.0f}")
    add("--resume", action="store_true", help="go on in FILE: what it holds and is stable is not measured again")
    add("--backend", choices=("nccl", "gloo"), help="default: nccl where there is a GPU, else gloo")
    for axis in ("tp", "cp", "pp", "dp", "ep", "etp"):
        add(f"--{axis}", type=int, metavar="N", help=argparse.SUPPRESS if axis == "etp" else f"ranks along {axis}")
    add("--order", default="tp-cp-ep-dp-pp", help="axes, the leftmost with stride 1 (default %(default)s)")
    add("--min-size", type=_size, default=4, metavar="SIZE", help="smallest message (default 4 bytes)")
    add("--max-size", type=_size, metavar="SIZE", help="largest message (default 4GiB; 64MiB on gloo)")
    add("--ops", type=_names, default=OPS, metavar="A,B", help=f"out of {','.join(OPS)}")
    add("--only", type=_names, default=PARTS, metavar="A,B", help=f"out of {','.join(PARTS)}")
    add("--hidden", type=_numbers, default=(), metavar="N,N", help="hidden sizes of the matrix products")
    add("--tokens", type=_numbers, default=(), metavar="N,N", help="tokens of the matrix products")
    what = f"half width of the median's 95 %% interval (default {GPU_WITHIN:g}; {CPU_WITHIN:g} on gloo)"
    add("--stability", type=float, metavar="SHARE", help=f"{what}; what is wider is measured again by --resume")
    return parser


def _size(text: str) -> int:
    try:
        return size_bytes(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _numbers(text: str) -> tuple[int, ...]:
    if not re.fullmatch(r"[1-9]\d*(,[1-9]\d*)*", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no list of whole numbers; write such as 4096,8192")
    if max(map(len, text.split(","))) > 7:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} has a number above 9999999; write such as 4096,8192")
    return tuple(map(int, text.split(",")))
