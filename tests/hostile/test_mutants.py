"""Requests of every API and version with bytes changed: nothing happens that nobody asked for
(G7).

VARVE_FUZZ_COUNT says how many are sent, VARVE_FUZZ_SEED where they start.
"""

import os

from tests.support.hostile_bench import HONEST_GROUP, PREY, VAULT, HostileBench
from tests.support.hostile_client import Barrage
from tests.support.hostile_requests import FrameMaker
from varve.wire import APIS, ApiKey

COUNT = int(os.environ.get("VARVE_FUZZ_COUNT", "10000")) // 2
SEED = int(os.environ.get("VARVE_FUZZ_SEED", "1"))
ALLOWED_GROWTH_BYTES = 128 << 20
"""Answers and requests of many connections, sessions of fetches, topics that were asked for."""


def _send(bench: HostileBench, maker: FrameMaker) -> Barrage:
    before = bench.server.rss_bytes()
    barrage = Barrage(bench.port)
    barrage.send(maker.make, COUNT)
    grown = bench.server.rss_bytes() - before
    assert grown < ALLOWED_GROWTH_BYTES, f"{grown >> 20} MiB more than before"
    assert bench.server.troubles() == []
    assert not barrage.failed
    return barrage


def test_who_may_only_read_changes_nothing(bench: HostileBench) -> None:
    before = bench.state()
    names = (VAULT, HONEST_GROUP, *PREY)
    barrage = _send(bench, FrameMaker(SEED, names, bench.ids(names)))
    assert set(barrage.answered) == {one.key for one in APIS.values()}
    assert bench.state() == before
    bench.check_served()


def test_who_may_do_all_changes_only_what_it_names(bench: HostileBench) -> None:
    bench.give_all()
    before = bench.honest_state()
    maker = FrameMaker(SEED, PREY, bench.ids(PREY), without=(ApiKey.DELETE_ACLS,), may_create=True)
    barrage = _send(bench, maker)
    assert set(barrage.answered) == {one.key for one in APIS.values()} - {ApiKey.DELETE_ACLS}
    assert bench.honest_state() == before
    bench.check_served()
