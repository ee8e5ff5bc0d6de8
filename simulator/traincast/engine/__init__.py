"""The discrete-event engine on SimPy: the reference that the recurrence is held to."""

from traincast.engine.count import expected_events
from traincast.engine.run import simulate

__all__ = ["expected_events", "simulate"]
