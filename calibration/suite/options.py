"""What a run is asked for: the command line of the suite."""

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

PARTS = ("collectives", "gemm", "attention", "memory", "optimizer", "launch", "setup", "overlap")
OPS = ("all_reduce", "all_gather", "reduce_scatter", "alltoall", "broadcast", "sendrecv")
QUICK_S, FULL_S = 150.0, 1800.0
"""Budgets; a quick run leaves half a minute of its three for the start of the processes."""

_SCALE = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 2**10, "mi": 2**20, "gi": 2**30}


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
    stability: float = 0.02


def size_bytes(text: str) -> int:
    """Bytes of ``4``, ``64KiB``, ``1M``, ``4GiB``; raises ValueError."""
    found = re.fullmatch(r"(\d+)\s*([kmg]i?|)b?", text.strip().lower())
    if found is None:
        raise ValueError(f"{text!r} is no size; write 4, 64KiB or 4GiB")
    return int(found.group(1)) * _SCALE[found.group(2)]


def parse(arguments: Sequence[str]) -> Options:
    """Options of a command line; ends the process with 2 and a message where it is wrong."""
    parser = _parser()
    given = parser.parse_args(arguments)
    budget_s = given.budget or (QUICK_S if given.quick else FULL_S)
    if budget_s <= 0:
        parser.error("--budget is a number of seconds above 0")
    if not 0 < given.stability < 1:
        parser.error("--stability is a share between 0 and 1, such as 0.02")
    wrong = [name for name in given.only if name not in PARTS] + [name for name in given.ops if name not in OPS]
    if wrong:
        parser.error(f"unknown {', '.join(wrong)}; --only knows {', '.join(PARTS)}; --ops knows {', '.join(OPS)}")
    return Options(
        output=given.output,
        quick=given.quick,
        budget_s=budget_s,
        resume=given.resume,
        backend=given.backend,
        sizes=tuple((axis, getattr(given, axis)) for axis in ("tp", "cp", "pp", "dp", "ep", "etp")),
        order=given.order,
        least_bytes=max(4, given.min_size),
        most_bytes=given.max_size,
        ops=tuple(given.ops),
        only=tuple(given.only),
        hidden=tuple(given.hidden),
        tokens=tuple(given.tokens),
        stability=given.stability,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="run.py", description="Microbenchmarks of a cluster under torchrun, srun or alone; JSON lines out."
    )
    add = parser.add_argument
    add("-o", "--output", type=Path, required=True, metavar="FILE", help="records are appended to FILE as they come")
    add("--quick", action="store_true", help="the most telling part, within three minutes on a node")
    add("--budget", type=float, metavar="SECONDS", help=f"default {FULL_S:.0f}, with --quick {QUICK_S:.0f}")
    add("--resume", action="store_true", help="go on in FILE: what it holds is not measured again")
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
    add("--stability", type=float, default=0.02, metavar="SHARE", help="half width of the median's 95 %% interval")
    return parser


def _size(text: str) -> int:
    try:
        return size_bytes(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _names(text: str) -> tuple[str, ...]:
    return tuple(part for part in text.split(",") if part)


def _numbers(text: str) -> tuple[int, ...]:
    if not re.fullmatch(r"[1-9]\d*(,[1-9]\d*)*", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no list of whole numbers such as 4096,8192")
    return tuple(map(int, text.split(",")))
