"""Forecasts one training step of a large transformer on a GPU cluster that nobody has booked yet."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("traincast")
except PackageNotFoundError:  # imported from a checkout that is not installed
    __version__ = "0+unknown"

__all__ = ["__version__"]
