"""How long the tests search: VARVE_ROUNDS=long, as `make crash` sets it, multiplies the rounds."""

import os
from typing import Final

from hypothesis import settings

IS_LONG: Final = os.environ.get("VARVE_ROUNDS") == "long"
EXAMPLES_LONG: Final = 5_000


def machine_settings(example_count: int) -> settings:
    """For examples that take a while, as rows of steps do: so many, or the long rounds'."""
    return settings(max_examples=EXAMPLES_LONG if IS_LONG else example_count, deadline=None)
