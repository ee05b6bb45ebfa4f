"""How long the tests search: VARVE_ROUNDS=long (as `make crash` sets it) multiplies the rounds."""

import os
import signal

import pytest
from hypothesis import settings

from tests.support.second_chance import pytest_runtest_protocol as pytest_runtest_protocol

IS_LONG = os.environ.get("VARVE_ROUNDS") == "long"

# Kernels compile during the first example, so single examples have no deadline.
settings.register_profile("default", deadline=None)
settings.register_profile("long", deadline=None, max_examples=5_000)
settings.load_profile("long" if IS_LONG else "default")


# A shell that runs the tests in the background lets them, and what they start, ignore interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def rounds_factor() -> int:
    """What a test that counts its own rounds multiplies them with."""
    return 50 if IS_LONG else 1


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests on Spark begin first: they take longest."""
    items.sort(key=lambda item: item.get_closest_marker("spark") is None)
