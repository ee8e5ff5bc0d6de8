"""Seconds of one operator. Every equation stands in the module of its kind; `machine` picks constants for it."""

from traincast.costs.machine import Machine, compute_seconds, host_seconds, machine_of, operator_seconds

__all__ = ["Machine", "compute_seconds", "host_seconds", "machine_of", "operator_seconds"]
