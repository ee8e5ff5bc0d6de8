"""Collectives and messages: one file an algorithm, the choice in `select`."""

from traincast.costs.collectives.message import message_seconds
from traincast.costs.collectives.network import NetworkConstants, Wires, wires
from traincast.costs.collectives.select import Choice, all_to_all_seconds, choose, collective_seconds

__all__ = [
    "Choice",
    "NetworkConstants",
    "Wires",
    "all_to_all_seconds",
    "choose",
    "collective_seconds",
    "message_seconds",
    "wires",
]
