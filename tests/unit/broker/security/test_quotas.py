"""Clients wait as long as Kafka lets them wait, each by the quota that counts for it."""

import pytest

from varve.broker.request import Principal
from varve.broker.security.quotas import (
    ClientQuotas,
    EntityType,
    QuotaEntity,
    QuotaKind,
    QuotaTable,
)
from varve.broker.settings import QuotaSettings
from varve.commit_log.health import DirectoryHealth
from varve.disk import MemoryFileSystem
from varve.foundation.clock import ManualClock
from varve.wire import ApiKey

USER, CLIENT = EntityType.USER, EntityType.CLIENT_ID
Names = dict[EntityType, str | None]


class _Bench:
    def __init__(self) -> None:
        self.clock = ManualClock()
        fs = MemoryFileSystem(self.clock)
        fs.make_directory("/a")
        self.table = QuotaTable(fs, [DirectoryHealth("/a")])
        self.quotas = ClientQuotas(self.table, QuotaSettings(), self.clock)

    def give(self, names: Names, kind: QuotaKind, value: float | None) -> None:
        self.table.alter([(QuotaEntity.from_names(names.items()), {kind: value})])

    def produce(self, size: int, user: str = "alice", client: str = "app") -> int:
        return self.note(ApiKey.PRODUCE, user, client, received_bytes=size)

    def fetch(self, size: int, user: str = "alice", client: str = "app") -> int:
        return self.note(ApiKey.FETCH, user, client, sent_bytes=size)

    def note(
        self,
        key: ApiKey,
        user: str,
        client: str,
        *,
        received_bytes: int = 50,
        sent_bytes: int = 50,
        elapsed_ms: float = 0.0,
    ) -> int:
        return self.quotas.charge_request(
            key,
            Principal("User", user),
            client,
            received_bytes=received_bytes,
            sent_bytes=sent_bytes,
            elapsed_ms=elapsed_ms,
        )


@pytest.fixture
def bench() -> _Bench:
    return _Bench()


@pytest.fixture
def limited(bench: _Bench) -> _Bench:
    """Alice may produce 1,000 bytes in a second."""
    bench.give({USER: "alice"}, QuotaKind.PRODUCE, 1_000)
    return bench


def test_without_quotas_nobody_waits_and_nobody_is_remembered(bench: _Bench) -> None:
    assert bench.produce(1 << 40) == 0
    assert not bench.quotas._meters


def test_a_producer_over_its_rate_waits_until_it_has_come_down(limited: _Bench) -> None:
    assert limited.produce(10_000) == 0
    # 20,000 bytes in ten seconds are twice what is allowed.
    assert limited.produce(10_000) == 10_000
    limited.clock.advance(12_000)
    assert limited.produce(1_000) == 0


def test_nobody_waits_for_longer_than_is_measured(bench: _Bench) -> None:
    bench.give({USER: "alice"}, QuotaKind.PRODUCE, 1)
    assert bench.produce(1 << 40) == 11_000


def test_a_clock_set_back_lets_nobody_wait_for_what_was_lost(limited: _Bench) -> None:
    assert limited.produce(10_000) == 0
    limited.clock.advance(-7_200_000)
    assert limited.produce(10_000) <= 11_000
    limited.clock.advance(12_000)
    assert limited.produce(1_000) == 0


def test_a_client_within_its_rate_never_waits(limited: _Bench) -> None:
    for _ in range(100):
        assert limited.produce(450) == 0
        limited.clock.advance(500)


def test_a_client_that_waits_as_told_keeps_to_its_rate(limited: _Bench) -> None:
    begin, sent = limited.clock.now_ms(), 0
    for _ in range(400):
        waits_ms = limited.produce(500)
        sent += 500
        limited.clock.advance(waits_ms + 10)
    seconds = (limited.clock.now_ms() - begin) / 1_000
    assert sent / seconds == pytest.approx(1_000, rel=0.15)


def test_answers_count_for_consumers_and_requests_for_producers(bench: _Bench) -> None:
    bench.give({USER: "alice"}, QuotaKind.CONSUME, 100)
    assert bench.produce(100_000) == 0
    assert bench.fetch(2_000) == 10_000


def test_time_in_the_broker_counts_by_percent(bench: _Bench) -> None:
    bench.give({USER: "alice"}, QuotaKind.REQUEST, 10)
    assert bench.note(ApiKey.METADATA, "alice", "app", elapsed_ms=1_000) == 0
    assert bench.note(ApiKey.METADATA, "alice", "app", elapsed_ms=1_000) == 10_000


ORDER: list[Names] = [
    {USER: "alice", CLIENT: "app"},
    {USER: "alice", CLIENT: None},
    {USER: "alice"},
    {USER: None, CLIENT: "app"},
    {USER: None, CLIENT: None},
    {USER: None},
    {CLIENT: "app"},
    {CLIENT: None},
]


def test_the_most_special_quota_counts(bench: _Bench) -> None:
    for place, names in enumerate(reversed(ORDER)):
        bench.give(names, QuotaKind.PRODUCE, 1_000 * (place + 1))
    for names in ORDER:
        bench.quotas._current()
        found = bench.quotas._find(QuotaKind.PRODUCE, "alice", "app")
        assert found is not None
        values = bench.table.quotas[QuotaEntity.from_names(names.items())]
        assert found[0] == values[QuotaKind.PRODUCE], names
        bench.give(names, QuotaKind.PRODUCE, None)
    assert bench.produce(1 << 30) == 0


@pytest.mark.parametrize(
    ("names", "others_pay"),
    [
        ({USER: "alice"}, [("alice", "other", True), ("bob", "app", False)]),
        ({USER: None}, [("alice", "other", True), ("bob", "app", False)]),
        ({CLIENT: "app"}, [("bob", "app", True), ("alice", "other", False)]),
        ({CLIENT: None}, [("bob", "app", True), ("alice", "other", False)]),
        ({USER: None, CLIENT: None}, [("alice", "other", False), ("bob", "app", False)]),
    ],
)
def test_who_shares_a_quota(
    bench: _Bench, names: Names, others_pay: list[tuple[str, str, bool]]
) -> None:
    bench.give(names, QuotaKind.PRODUCE, 1_000)
    assert bench.produce(10_000) == 0
    for user, client, pays in others_pay:
        assert (bench.produce(10, user, client) > 0) is pays, (user, client)


def test_clients_without_end_are_not_remembered_without_end(
    bench: _Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("varve.broker.security.quotas._METER_COUNT_MAX", 100)
    monkeypatch.setattr("varve.broker.security.quotas._ANSWER_COUNT_MAX", 100)
    bench.give({CLIENT: None}, QuotaKind.PRODUCE, 1_000)
    for number in range(300):
        bench.produce(1, client=f"c{number}")
    assert len(bench.quotas._meters) == 100
    assert len(bench.quotas._cache) <= 100
