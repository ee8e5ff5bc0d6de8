"""The recurrence: longest path over the operations of a program, equal to the engine to the last bit."""

from traincast.analytic.recurrence import evaluate, evaluate_batch

__all__ = ["evaluate", "evaluate_batch"]
