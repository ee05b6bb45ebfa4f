"""A store in two tiers equals a plain list, whatever happens to it, in whatever order: G1, G3, G5.

Appends of all kinds, rolls, copies, expiry, local and total retention, deleted records, cut logs,
altered topics, compaction, crashes at any step of disk or object store, requests that fail, are
repeated or lost, a second writer of the manifest, a lost checkpoint. A failing sequence is told by
its seed.
"""

import random

import pytest

from tests.support.rounds import IS_LONG
from tests.support.tiered_store_bench import TieredStore
from tests.support.tiered_store_steps import draw_settings, draw_step, play


@pytest.mark.parametrize("seed", range(2_000 if IS_LONG else 16))
def test_readers_see_what_the_list_holds(seed: int) -> None:
    source = random.Random(seed)
    settings = draw_settings(source)
    steps = [draw_step(source) for _ in range(80 if IS_LONG else 40)]
    play(steps, TieredStore(settings, seed=seed))
