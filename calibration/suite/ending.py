"""How a run ends: together, or at once on all ranks when one of them failed.

A rank that fails while others wait for it in a collective must not wait for them: it says why, sounds the alarm in the
store of the process group and ends its process. Every rank has a thread that waits for the alarm, since nobody else
wakes a rank out of a kernel of NCCL that waits for a process that is gone (torchrun ends such a rank after 30 s, srun
not at all).
"""

import os
import sys
import threading
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, NoReturn

import torch.distributed as dist

from suite.launch import Launch

FAILED = 3
"""Exit code of a process that ends because it, or another one, failed; 1 says that a result was wrong."""

_LOST = ("Connection closed", "Connection reset", "imed out", "Broken pipe")
_KEY = "traincast-suite/alarm"
_GRACE_S = 2.0
"""The rank that failed ends first, so that a launcher names that one."""
_REACH = timedelta(seconds=5)
_LONG = timedelta(days=20)  # in milliseconds it fits in 31 bits


@dataclass
class Watch:
    """The thread that ends this process on an alarm; `leaving`: an alarm is now the sign of the common end."""

    launch: Launch
    leaving: threading.Event = field(default_factory=threading.Event)
    thread: threading.Thread | None = None

    def start(self) -> None:
        """Starts to wait; a process by itself has nobody to wait for."""
        if self.launch.address is not None and self.launch.world > 1:
            self.thread = threading.Thread(target=self._wait, args=(_client(self.launch),), daemon=True)
            self.thread.start()

    def stop(self) -> None:
        """Ends the thread; all ranks call it, after a barrier. A thread left in PyTorch would spoil the exit."""
        if self.thread is not None:
            self.leaving.set()
            if self.launch.rank == 0:
                sound(self.launch)
            self.thread.join(_REACH.total_seconds())

    def _wait(self, store: Any) -> None:
        with suppress(RuntimeError):  # the process that keeps the store is gone: an alarm too
            store.wait([_KEY], _LONG)
        if not self.leaving.is_set():
            time.sleep(_GRACE_S)
            os._exit(FAILED)


def sound(launch: Launch) -> bool:
    """Sounds the alarm; whether it was quiet before (a store that is gone: no)."""
    if launch.address is None or launch.world == 1:
        return True
    try:
        store = _client(launch)
        quiet = not store.check([_KEY])
        store.set(_KEY, "1")
        return quiet
    except RuntimeError:
        return False


def abort(launch: Launch, error: BaseException) -> NoReturn:
    """Says on standard error what failed and ends this process, and through the alarm all others; does not return.

    What follows from another rank's failure (closed connections) is not said.
    """
    if isinstance(error, KeyboardInterrupt):
        sound(launch)
    elif sound(launch):
        words = (str(error).strip() or "no message").splitlines()[0]
        if any(sign in words for sign in _LOST):
            print(f"rank {launch.rank} lost another process, which was killed or lost its network", file=sys.stderr)
        else:
            print(f"rank {launch.rank} failed: {type(error).__name__}: {words}", file=sys.stderr)
            traceback.print_exception(error)
    sys.stderr.flush()
    os._exit(FAILED)


def _client(launch: Launch) -> Any:
    """A connection of one's own: one that waits lets nobody else use it."""
    return dist.TCPStore(str(launch.address), launch.port, is_master=False, wait_for_workers=False, timeout=_REACH)
