"""Collectives and messages: one file an algorithm, the choice in `select`."""

from traincast.costs.collectives.message import message_seconds
from traincast.costs.collectives.network import (
    ExchangeConstants,
    FabricConstants,
    NetworkConstants,
    NvlsConstants,
    Wires,
    wires,
)
from traincast.costs.collectives.option import Choice
from traincast.costs.collectives.ring import fill_s
from traincast.costs.collectives.select import Forced, all_to_all_seconds, choose, collective_seconds

__all__ = [
    "Choice",
    "ExchangeConstants",
    "FabricConstants",
    "Forced",
    "NetworkConstants",
    "NvlsConstants",
    "Wires",
    "all_to_all_seconds",
    "choose",
    "collective_seconds",
    "fill_s",
    "message_seconds",
    "wires",
]
