"""The life of the ids of a topic: with its settings, its restarts, its troubles and its end."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.support.broker_kit import BrokerKit
from tests.support.data_requests import append, produce, produce_request
from tests.support.dedup_topic import (
    LATENESS_MS,
    TOPIC,
    WINDOW_MS,
    batch_of,
    keys_in,
    make_topic,
    send,
    states_on,
)
from varve.broker.dedup.partition import DedupReplay
from varve.commit_log import TopicPartition
from varve.foundation.errors import Corrupt, InvalidSetting, Unavailable
from varve.foundation.metrics import exposition
from varve.kafka_server.launch import _pages
from varve.kafka_server.server import Server
from varve.rocks.memory_database import MemoryDatabase
from varve.wire import ErrorCode
from varve.wire.messages.topics import (
    DeleteTopicsRequest,
    DeleteTopicState,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
)

NONE = ErrorCode.NONE
TOPIC_KIND = 2


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The offsets from which logs are read for ids."""
    found: list[int] = []
    real = DedupReplay.learn

    def learn(self: DedupReplay, start: int, stream_time_ms: int, now_ms: int) -> int:
        found.append(start)
        return real(self, start, stream_time_ms, now_ms)

    monkeypatch.setattr(DedupReplay, "learn", learn)
    return found


def alter(kit: BrokerKit, **values: str | None) -> None:
    """`window_ms` stands for varve.dedup.window.ms; None takes a setting back."""
    configs = [
        IncrementalAlterableConfig(
            f"varve.dedup.{name.replace('_', '.')}", 1 if value is None else 0, value
        )
        for name, value in values.items()
    ]
    resource = IncrementalAlterConfigsResource(TOPIC_KIND, TOPIC, configs)
    answer = kit.ask(IncrementalAlterConfigsRequest([resource]))
    assert answer.responses[0].error_code == NONE, answer.responses[0].error_message
    kit.settle()


def delete(kit: BrokerKit) -> None:
    kit.ask(DeleteTopicsRequest([DeleteTopicState(TOPIC)]))
    kit.settle()


# Settings


@pytest.mark.parametrize("by", ["id", "key:x", "key:", "header", "header:", "field:", "field:a'b"])
def test_what_names_no_id_is_refused(kit: BrokerKit, by: str) -> None:
    with pytest.raises(InvalidSetting, match=r"varve\.dedup\.by"):
        make_topic(kit, {"varve.dedup.by": by})


def test_settings_are_described(kit: BrokerKit) -> None:
    make_topic(kit, {"varve.dedup.by": "header:id"})
    resource = DescribeConfigsResource(TOPIC_KIND, TOPIC, None)
    answer = kit.ask(DescribeConfigsRequest([resource]))
    told = {one.name: one.value for one in answer.results[0].configs}
    assert told["varve.dedup.by"] == "header:id"
    assert told["varve.dedup.window.ms"] == "600000"
    assert told["varve.dedup.lateness.ms"] == "-1"


def test_a_topic_that_takes_every_record_leaves_nothing_on_disk(kit: BrokerKit) -> None:
    make_topic(kit, {})
    assert [send(kit, ("a", 0)) for _ in range(2)] == [(NONE, 0), (NONE, 1)]
    assert not states_on(kit.fs)


def test_turned_on_it_knows_what_the_log_has(kit: BrokerKit) -> None:
    log = make_topic(kit, {})
    append(kit, batch_of(("a", 0), ("a", 1), ("b", 2)), topic=TOPIC)
    alter(kit, by="key", window_ms=str(WINDOW_MS))
    assert send(kit, ("b", 3), ("a", 3)) == (NONE, 2)
    assert log.end_offset == 3


def test_turned_on_it_reads_no_more_than_the_window_needs(
    kit: BrokerKit, starts: list[int]
) -> None:
    make_topic(kit, {})
    far = -(LATENESS_MS + 2 * WINDOW_MS + 2)
    for at in (far, far + 1, -1, 0):
        append(kit, batch_of((str(at), at)), topic=TOPIC)
    alter(kit, by="key", window_ms=str(WINDOW_MS), lateness_ms=str(LATENESS_MS))
    assert starts == [1]


def test_a_time_that_does_not_count_makes_it_read_all(kit: BrokerKit, starts: list[int]) -> None:
    make_topic(kit, {})
    append(kit, batch_of(("a", 0)), batch_of(("b", 99 * LATENESS_MS)), topic=TOPIC)
    alter(kit, by="key", window_ms=str(WINDOW_MS), lateness_ms=str(LATENESS_MS))
    assert starts == [1, 0]
    assert send(kit, ("a", 1)) == (NONE, 0)


def test_turned_off_it_takes_duplicates_and_its_ids_are_gone(kit: BrokerKit) -> None:
    make_topic(kit)
    send(kit, ("a", 0))
    assert len(list(states_on(kit.fs))) == 2
    alter(kit, by=None)
    assert not states_on(kit.fs)
    assert send(kit, ("a", 0)) == (NONE, 1)


def test_other_rules_hold_from_their_change_on(kit: BrokerKit) -> None:
    log = make_topic(kit)
    send(kit, ("a", 0))
    alter(kit, window_ms="10")
    assert send(kit, ("a", 10)) == (NONE, 0)
    assert send(kit, ("a", 11)) == (NONE, 1)
    alter(kit, window_ms=str(WINDOW_MS))
    assert send(kit, ("a", 11 + WINDOW_MS)) == (NONE, 1)
    assert log.end_offset == 2


def test_a_deleted_topic_leaves_nothing_and_its_successor_knows_nothing(kit: BrokerKit) -> None:
    make_topic(kit)
    send(kit, ("a", 0))
    delete(kit)
    assert not states_on(kit.fs)
    log = make_topic(kit)
    assert send(kit, ("a", 0)) == (NONE, 0)
    assert keys_in(log) == ["a"]


def test_what_was_left_of_others_is_swept_at_the_start(kit: BrokerKit) -> None:
    make_topic(kit)
    send(kit, ("a", 0))
    kit.fs.make_directory("data.dedup/processor/0")
    kit.restart(is_crash=True)
    kept = set(states_on(kit.fs))
    kit.store.alter_topic(TOPIC, {"varve.dedup.by": ""})
    kit.restart()
    assert len(kept) == 3
    assert states_on(kit.fs) == ["processor"]


# Restarts


def test_after_a_clean_stop_nothing_is_read_again(kit: BrokerKit, starts: list[int]) -> None:
    make_topic(kit)
    send(kit, ("a", 0), ("b", 0))
    starts.clear()
    kit.restart()
    assert starts == [2]
    assert send(kit, ("b", 1)) == (NONE, 1)


@pytest.mark.parametrize(("boot", "expected"), [("same", 2), ("other", 0)])
def test_after_a_crash_a_checkpoint_counts_if_the_machine_ran_on(
    starts: list[int], boot: str, expected: int
) -> None:
    with BrokerKit(boot_id="same") as kit:
        make_topic(kit)
        send(kit, ("a", 0), ("b", 0))
        kit.advance(60_000)
        send(kit, ("c", 500))
        starts.clear()
        kit.set_part(boot_id=boot)
        kit.restart(is_crash=True)
        assert starts[0] == expected
        assert send(kit, ("c", 501)) == (NONE, 2)
        assert send(kit, ("a", 1)) == (NONE, 0)


def test_what_the_future_made_late_is_known_after_a_restore(kit: BrokerKit) -> None:
    make_topic(kit)
    send(kit, ("ahead", LATENESS_MS + WINDOW_MS // 2))
    assert send(kit, ("a", 0)) == (NONE, 1)
    kit.clock.advance(WINDOW_MS)
    kit.set_part(boot_id="other")
    kit.restart(is_crash=True)
    # By now `ahead` is of the present, and `a` is late, but not its copy.
    assert send(kit, ("a", WINDOW_MS)) == (NONE, 1)


def test_partitions_that_came_later_have_gates_too(kit: BrokerKit) -> None:
    make_topic(kit)
    kit.store.add_partitions(TOPIC, 2)
    kit.broker.topics.refresh()
    for _ in range(2):
        assert produce(kit, TOPIC, batch_of(("a", 0)), partition=1).base_offset == 0


# While ids are not there


def begin(kit: BrokerKit, *keys: str, timeout_ms: int = 1_000) -> "list[Any]":
    return [
        kit.begin(
            produce_request(kit, {(TOPIC, 0): batch_of((key, 0))}, timeout_ms=timeout_ms),
            version=9,
        )
        for key in keys
    ]


def told(futures: Sequence[Any]) -> list[tuple[int, int]]:
    found = [one.result().responses[0].partition_responses[0] for one in futures]
    return [(one.error_code, one.base_offset) for one in found]


def test_what_comes_while_ids_are_restored_waits_in_order(kit: BrokerKit) -> None:
    log = make_topic(kit)
    kit.hold_work(work=True)
    waiting = begin(kit, "a", "b", "a", "c")
    assert not any(one.done() for one in waiting)
    assert kit.broker.dedup_topics.states() == {"restoring": 1}
    kit.release_work()
    assert told(waiting) == [(NONE, 0), (NONE, 1), (NONE, 0), (NONE, 2)]
    assert keys_in(log) == ["a", "b", "c"]
    assert kit.broker.dedup_topics.states() == {"open": 1}


def test_nobody_waits_longer_than_the_request_may(kit: BrokerKit) -> None:
    log = make_topic(kit)
    kit.hold_work(work=True)
    waiting = begin(kit, "a", timeout_ms=300) + begin(kit, "b", timeout_ms=5_000)
    kit.advance(400)
    assert told(waiting[:1]) == [(ErrorCode.REQUEST_TIMED_OUT, -1)]
    kit.release_work()
    assert told(waiting[1:]) == [(NONE, 0)]
    assert keys_in(log) == ["b"]


def test_who_waits_is_told_when_the_topic_goes(kit: BrokerKit) -> None:
    make_topic(kit)
    kit.hold_work(work=True)
    waiting = begin(kit, "a")
    kit.broker.store.delete_topic(TOPIC)
    kit.broker.topics.refresh()
    kit.broker.dedup_topics.partition_changed(TopicPartition(TOPIC, 0))
    kit.release_work()
    assert told(waiting)[0][0] == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert not states_on(kit.fs)


@contextmanager
def failing(monkeypatch: pytest.MonkeyPatch, method: str, error: Exception) -> Iterator[None]:
    """A method of the database of ids raises an error meanwhile."""

    def fail(*_: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(MemoryDatabase, method, fail)
        yield


def test_a_disk_that_refuses_ids_closes_the_gate_until_it_takes_them(
    kit: BrokerKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = make_topic(kit)
    send(kit, ("a", 0))

    with failing(monkeypatch, "write", Unavailable("the disk is tired")):
        # It is in the log, and so it is acknowledged; the gate closes behind it.
        assert send(kit, ("b", 0)) == (NONE, 1)
        kit.settle()
        assert list(kit.broker.dedup_topics.failures().values()) == ["the disk is tired"]
        assert kit.broker.dedup_topics.states() == {"failed": 1}
        waiting = begin(kit, "c", timeout_ms=60_000)
        kit.advance(3_000)
        assert not waiting[0].done()
    kit.advance(1_100)
    assert told(waiting) == [(NONE, 2)]
    assert not kit.broker.dedup_topics.failures()
    assert send(kit, ("b", 1)) == (NONE, 1)
    assert log.end_offset == 3


def test_a_checkpoint_that_fails_closes_the_gate_for_a_moment_as_health_tells(
    kit: BrokerKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_topic(kit)
    send(kit, ("a", 0))
    health = _pages(cast(Server, SimpleNamespace(broker=kit.broker)), kit.store)["/health"]
    well = kit.run(health())
    assert (well.status, json.loads(well.body)["healthy"]) == (200, True)

    with failing(monkeypatch, "flush", Unavailable("the disk is tired")):
        kit.advance(60_000)
        assert kit.broker.dedup_topics.states() == {"failed": 1}
        ill = kit.run(health())
    assert ill.status == 503
    assert json.loads(ill.body)["dedup"] == {"orders-0": "the disk is tired"}
    kit.advance(1_100)
    assert kit.run(health()).status == 200
    assert kit.broker.dedup_topics.states() == {"open": 1}
    assert send(kit, ("a", 1)) == (NONE, 0)


def test_damaged_ids_are_restored_from_the_log(
    kit: BrokerKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_topic(kit)
    send(kit, ("a", 0))

    with failing(monkeypatch, "get", Corrupt("bits have flipped")):
        assert send(kit, ("a", 1))[0] == ErrorCode.KAFKA_STORAGE_ERROR
    kit.advance(1_100)
    assert send(kit, ("a", 1)) == (NONE, 0)


def test_ids_that_cannot_be_opened_are_made_anew(kit: BrokerKit) -> None:
    make_topic(kit)
    send(kit, ("a", 0))
    kit.restart()
    (note,) = [name for name in states_on(kit.fs) if name.endswith(".json")]
    with kit.fs.open_writable(f"data.dedup/{note}") as file:
        file.write_at(0, b"?")
    kit.restart(is_crash=True)
    assert send(kit, ("a", 1)) == (NONE, 0)


def test_a_log_that_was_cut_is_learnt_anew(kit: BrokerKit) -> None:
    log = make_topic(kit)
    send(kit, ("a", 0))
    send(kit, ("b", 0))
    log.truncate_to(1)
    assert send(kit, ("b", 1))[0] == ErrorCode.KAFKA_STORAGE_ERROR
    kit.advance(1_100)
    assert send(kit, ("b", 1)) == (NONE, 1)
    assert send(kit, ("a", 1)) == (NONE, 0)


def test_a_log_that_lost_its_end_and_grew_again_is_learnt_anew() -> None:
    with BrokerKit(boot_id="same") as kit:
        log = make_topic(kit)
        send(kit, ("a", 0))
        send(kit, ("b", 0))
        kit.advance(60_000)
        log.truncate_to(1)
        log.append(batch_of(("x", 0)))
        kit.restart(is_crash=True)
        assert send(kit, ("b", 1)) == (NONE, 2)
        assert send(kit, ("x", 1)) == (NONE, 1)
        assert send(kit, ("a", 1)) == (NONE, 0)


def test_duplicates_are_counted_by_topic(kit: BrokerKit) -> None:
    make_topic(kit)
    send(kit, ("a", 0), ("a", 0), ("b", 0))
    alter(kit, window_ms="5")
    send(kit, ("a", 5))
    text = exposition(kit.broker.metrics)
    labels = f'topic="{TOPIC}",verdict="duplicates"'
    assert f"varve_broker_dedup_records_total{{{labels}}} 2.0" in str(text)
    assert 'varve_broker_dedup_partitions{state="open"} 1.0' in str(text)
