"""Microbenchmarks of a cluster: collectives over the groups of a mesh, kernels of a transformer, the cost of start-up.

Needs PyTorch and the standard library only, so that it runs where nothing else is installed. Modules that plan,
judge and store import no PyTorch either. The records are those of `traincast.calibration` (JSON lines, schema 1).
"""
