"""Shared fixtures. Hypothesis runs derandomised, so that a failure here is a failure everywhere."""

from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("traincast", derandomize=True, deadline=None, print_blob=True)
settings.load_profile("traincast")


@pytest.fixture(scope="session")
def checkout() -> Path:
    """The root of the checkout that the tests stand in."""
    return Path(__file__).resolve().parent.parent
