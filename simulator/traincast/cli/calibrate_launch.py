"""Starts the microbenchmark suite under torchrun: its lines are passed on, torchrun's own reports are not.

A worker's error is one line of its own; torchrun adds a traceback through itself and ends with 1 whatever a worker
ended with.
"""

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

_OWN_LOG: Final = re.compile(r"[WEI]\d{4} [\d:.]+ +\d+ \S*torch/distributed/")
_RANK: Final = re.compile(r"\s*rank +: (\d+)")
_EXIT: Final = re.compile(r"\s*exitcode +: (-?\d+)")
_TRACE: Final = "Traceback (most recent call last):"
_OWN_TRACE: Final = "torch/distributed/run.py"
_OWN_ERROR: Final = "torch.distributed.elastic."
_USERS: Final = "run.py: "


@dataclass
class Told:
    """What came out of the processes: a user's error, and the rank that failed first with its exit code."""

    users_error: str | None = None
    failed: tuple[int, int] | None = None


@dataclass(frozen=True)
class Ended:
    """How a run of the suite ended: 0, or torchrun's own code; `interrupted`: somebody stopped it."""

    code: int
    told: Told
    interrupted: bool = False


def passed_on(lines: Iterable[str], told: Told) -> Iterable[str]:
    """The lines that are not torchrun's own; `told` gets what those say.

    A traceback is kept back until its end shows whose it is.
    """
    held: list[str] = []
    report, rank = False, 0
    for line in lines:
        if report:  # torchrun's list of failures, between rules of '='
            rank = int(found.group(1)) if (found := _RANK.match(line)) else rank
            if found := _EXIT.match(line):  # the last one is the root cause
                told.failed = (rank, int(found.group(1)))
            report = not (line.startswith("=====") and told.failed is not None)
        elif held and line.strip() and not line.startswith(" "):
            own = any(_OWN_TRACE in one for one in held) and line.startswith(_OWN_ERROR)
            report = own and "ChildFailedError" in line
            yield from () if own else (*held, line)
            held = []
        elif held or line.startswith(_TRACE):
            held.append(line)
        elif line.startswith(_USERS):
            told.users_error = told.users_error or line.removeprefix(_USERS).strip()
        elif not _OWN_LOG.match(line):
            yield line
    yield from held


def launch(command: Sequence[str], say: Callable[[str], object] | None = None) -> Ended:
    """Runs the suite and passes its lines on to standard error (or `say`).

    An interruption reaches the processes too; they are left the time to end their file. So is an order to end.
    """
    write = say or _to_stderr
    told = Told()
    # torchrun sets this itself where it is not set, with a warning; the suite sets its own number of threads
    environment = {"OMP_NUM_THREADS": "1", **os.environ}
    stopped: list[int] = []
    with subprocess.Popen(command, stderr=subprocess.PIPE, env=environment) as process:
        assert process.stderr is not None
        lines = (line.decode("utf-8", errors="replace") for line in process.stderr)

        def read() -> None:
            for line in passed_on(lines, told):
                write(line)

        def end(number: int, frame: object) -> None:
            stopped.append(number)
            process.send_signal(number)

        before = signal.signal(signal.SIGTERM, end) if threading.current_thread() is threading.main_thread() else None
        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        try:
            code = _wait(process, stopped)
        finally:
            if before is not None:
                signal.signal(signal.SIGTERM, before)
        reader.join()
    return Ended(code, told, bool(stopped))


def _wait(process: "subprocess.Popen[bytes]", stopped: list[int]) -> int:
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:
            stopped.append(signal.SIGINT)


def _to_stderr(line: str) -> None:
    sys.stderr.write(line)
    sys.stderr.flush()
