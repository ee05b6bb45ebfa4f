"""Fetch sessions."""

import random
from typing import Any

import pytest

from tests.support.broker_kit import BrokerKit
from tests.support.data_requests import append, fetch_request, fetched
from tests.support.log_bench import make_batch
from varve.broker.data.fetch_sessions import FetchSession, FetchSessions
from varve.broker.settings import BrokerSettings
from varve.foundation.clock import ManualClock
from varve.wire import ErrorCode
from varve.wire.errors import KafkaError
from varve.wire.messages.data import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic

SIZE = len(make_batch())
ALL = {("events", 0): 0, ("events", 1): 0, ("events", 2): 0}


def open_session(kit: BrokerKit, version: int = 12, **named: Any) -> int:
    request = fetch_request(kit, ALL, session=(0, 0), max_wait_ms=0, **named)
    answer = kit.ask(request, version=version)
    assert answer.session_id > 0
    return int(answer.session_id)


def go_on(
    kit: BrokerKit,
    session: tuple[int, int],
    offsets: dict[tuple[str, int], int] | None = None,
    *,
    version: int = 12,
    forgets: list[ForgottenTopic] | None = None,
    **named: Any,
) -> Any:
    named = {"max_wait_ms": 0, **named}
    request = fetch_request(kit, offsets or {}, session=session, **named)
    request.forgotten_topics_data = forgets or []
    return kit.ask(request, version=version)


@pytest.mark.parametrize("version", [7, 11, 12])
def test_a_session_tells_only_news(kit: BrokerKit, version: int) -> None:
    id = open_session(kit, version)
    assert fetched(go_on(kit, (id, 1), version=version)) == {}
    append(kit, make_batch(), partition=1)
    found = fetched(go_on(kit, (id, 2), version=version))
    assert list(found) == [("events", 1)]
    assert len(found["events", 1].records or b"") == SIZE
    answer = go_on(kit, (id, 3), {("events", 1): 1}, version=version)
    assert fetched(answer) == {}
    assert answer.session_id == id


def test_a_session_by_topic_ids(kit: BrokerKit) -> None:
    id = open_session(kit, 13)
    append(kit, make_batch())
    answer = go_on(kit, (id, 1), version=13)
    assert answer.responses[0].topic_id == kit.topic("events").id
    refused = go_on(kit, (id, 2), version=12)
    assert refused.error_code == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR


def test_a_moved_log_start_is_news(kit: BrokerKit) -> None:
    append(kit, make_batch(3))
    id = open_session(kit)
    go_on(kit, (id, 1), {("events", 0): 3})
    kit.log("events").delete_records(2)
    found = fetched(go_on(kit, (id, 2)))
    assert found["events", 0].log_start_offset == 2


def test_an_error_is_news_each_time_and_so_is_its_end(kit: BrokerKit) -> None:
    id = open_session(kit)
    for epoch in (1, 2):
        found = fetched(go_on(kit, (id, epoch), {("events", 0): 7}))
        assert found["events", 0].error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert list(fetched(go_on(kit, (id, 3), {("events", 0): 0}))) == [("events", 0)]
    assert fetched(go_on(kit, (id, 4))) == {}


def test_partitions_are_added_and_forgotten(kit: BrokerKit) -> None:
    kit.make_topic("more")
    append(kit, make_batch(), topic="more")
    id = open_session(kit)
    found = fetched(go_on(kit, (id, 1), {("more", 0): 0}))
    assert list(found) == [("more", 0)]
    append(kit, make_batch())
    forgets = [ForgottenTopic("events", partitions=[0, 1]), ForgottenTopic("more", partitions=[0])]
    assert fetched(go_on(kit, (id, 2), forgets=forgets)) == {}
    assert kit.broker.fetch_sessions.partition_count == 1
    last = go_on(kit, (id, 3), forgets=[ForgottenTopic("events", partitions=[2])])
    assert last.session_id == 0
    assert len(kit.broker.fetch_sessions) == 0


def test_those_that_were_served_go_last(kit: BrokerKit) -> None:
    for partition in range(3):
        append(kit, make_batch(), partition=partition)
    id = open_session(kit, max_bytes=1)
    served = []
    for epoch in (1, 2):
        found = fetched(go_on(kit, (id, epoch), max_bytes=1))
        served += [number for (_, number), one in found.items() if one.records]
    assert len(set(served)) == 2


def test_long_polls_of_a_session_see_its_partitions(kit: BrokerKit) -> None:
    id = open_session(kit)
    waiting = kit.begin(fetch_request(kit, {}, session=(id, 1)), version=12)
    append(kit, make_batch(), partition=2)
    assert list(fetched(waiting.result())) == [("events", 2)]


def test_an_unknown_session_or_epoch_is_refused(kit: BrokerKit) -> None:
    id = open_session(kit)
    unknown = go_on(kit, (id + 1, 1))
    assert unknown.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    late = go_on(kit, (id, 2))
    assert late.error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert go_on(kit, (id, 1)).error_code == 0
    repeated = go_on(kit, (id, 1))
    assert repeated.error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert go_on(kit, (id, 2)).error_code == 0


def test_a_session_is_closed_by_the_final_epoch_and_renewed_by_the_first(kit: BrokerKit) -> None:
    id = open_session(kit)
    renewed = go_on(kit, (id, 0), ALL)
    assert renewed.session_id not in (0, id)
    assert len(kit.broker.fetch_sessions) == 1
    closed = go_on(kit, (renewed.session_id, -1), ALL)
    assert (closed.session_id, len(closed.responses)) == (0, 1)
    assert len(kit.broker.fetch_sessions) == 0
    assert kit.broker.fetch_sessions.partition_count == 0


# Bounds


def request(count: int, session: tuple[int, int] = (0, 0)) -> FetchRequest:
    topic = FetchTopic("t", partitions=[FetchPartition(number) for number in range(count)])
    return FetchRequest(session_id=session[0], session_epoch=session[1], topics=[topic])


def make_sessions(clock: ManualClock | None = None, **settings: Any) -> FetchSessions:
    return FetchSessions(BrokerSettings(**settings), clock or ManualClock(), random.Random(1))


def opened(sessions: FetchSessions, count: int) -> FetchSession:
    session = sessions.plan(request(count), has_ids=False).session
    assert session is not None
    return session


def test_sessions_are_bounded_and_the_unused_make_room() -> None:
    clock = ManualClock()
    sessions = make_sessions(clock, fetch_session_count_max=2)
    first, second = opened(sessions, 3), opened(sessions, 3)
    assert sessions.plan(request(3), has_ids=False).session is None
    clock.advance(100_000)
    sessions.plan(request(0, (second.id, 1)), has_ids=False)
    clock.advance(30_000)
    opened(sessions, 3)
    with pytest.raises(KafkaError) as caught:
        sessions.plan(request(0, (first.id, 1)), has_ids=False)
    assert caught.value.code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert sessions.plan(request(0, (second.id, 2)), has_ids=False).session is second


def test_a_larger_session_takes_the_place_of_a_smaller_one_that_had_its_time() -> None:
    clock = ManualClock()
    sessions = make_sessions(clock, fetch_session_count_max=1)
    small = opened(sessions, 3)
    clock.advance(121_000)
    sessions.plan(request(0, (small.id, 1)), has_ids=False)
    assert sessions.plan(request(3), has_ids=False).session is None
    opened(sessions, 4)
    assert (len(sessions), sessions.partition_count) == (1, 4)


def test_partitions_of_sessions_are_bounded() -> None:
    sessions = make_sessions(fetch_session_partition_count_max=5)
    assert sessions.plan(request(6), has_ids=False).session is None
    session = opened(sessions, 3)
    assert sessions.plan(request(3), has_ids=False).session is None
    with pytest.raises(KafkaError) as caught:
        sessions.plan(request(6, (session.id, 1)), has_ids=False)
    assert caught.value.code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert (len(sessions), sessions.partition_count) == (0, 0)


def test_no_sessions_at_all() -> None:
    plan = make_sessions(fetch_session_count_max=0).plan(request(2), has_ids=False)
    assert (plan.session, len(plan.partitions)) == (None, 2)


def test_epochs_begin_again_behind_the_last() -> None:
    sessions = make_sessions()
    session = opened(sessions, 1)
    session.epoch = 2**31 - 1
    plan = sessions.plan(request(0, (session.id, 2**31 - 1)), has_ids=False)
    assert plan.session is session
    assert session.epoch == 1
