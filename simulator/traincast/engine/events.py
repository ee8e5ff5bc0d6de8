"""SimPy events whose outcome is known beforehand, only their time is not.

Scheduling such an event with a delay is all that a message costs; a process per message or a Resource per
device would cost five to eight times more, and nothing queues on them here.
"""

import math
from collections import deque
from collections.abc import Callable

import simpy


class Moment(simpy.Event):
    """An event that succeeds when `env.schedule(moment, delay=...)` says; one may wait for it before that."""

    _ok = True
    _value = None


class Message(Moment):
    """The arrival of one output at its neighbour; `start_s` to `end_s` is its transfer."""

    start_s = math.nan
    end_s = math.nan
    posted = False

    def __init__(self, env: simpy.Environment, send_s: float) -> None:
        super().__init__(env)
        self.send_s = send_s

    def begin(self, arrived: Callable[[simpy.Event], None] | None = None) -> None:
        """Begin the transfer now, and call `arrived` at its end."""
        if arrived is not None:
            self.callbacks.append(arrived)
        self.start_s = self.env.now
        self._transfer()

    def _transfer(self) -> None:
        self.end_s = self.start_s + self.send_s  # the very sum that SimPy makes of the delay
        self.env.schedule(self, delay=self.send_s)

    def post(self) -> None:
        """Post one end of a rendezvous; the second post begins the transfer."""
        if self.posted:
            self.start_s = self.env.now
            self._transfer()
        else:
            self.posted = True


class SendStream:
    """The pp-send stream of one direction: one message at a time, in the order of the outputs.

    It is driven by the arrivals of its own messages, so that it costs no event and no process of its own.
    """

    def __init__(self) -> None:
        self.busy = False
        self.waiting: deque[Message] = deque()

    def push(self, message: Message) -> None:
        """Send the message, now or as soon as the earlier ones have arrived."""
        if self.busy:
            self.waiting.append(message)
        else:
            self.busy = True
            message.begin(self.arrived)

    def arrived(self, _: simpy.Event) -> None:
        """Begin the next transfer, at the arrival of the one before it."""
        if self.waiting:
            self.waiting.popleft().begin(self.arrived)
        else:
            self.busy = False


class Gate(Moment):
    """The moment at which all of `missing` parties have arrived."""

    def __init__(self, env: simpy.Environment, missing: int) -> None:
        super().__init__(env)
        self.missing = missing

    def arrive(self) -> None:
        """One party is ready; the last one opens the gate."""
        self.missing -= 1
        if not self.missing:
            self.env.schedule(self)
