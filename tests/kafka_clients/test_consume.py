"""Consumers begin where they are told to, and where their policy says when they cannot."""

from collections.abc import Iterator

import pytest

from tests.support.kafka_clients import OutOfRange, Place, Reset
from tests.support.kafka_reading import QUIET_SECONDS, Lab, read_count

START = 10
END = 50
TIMESTAMP_MS = 1_700_000_000_000


@pytest.fixture(scope="module")
def topic(lab: Lab) -> Iterator[str]:
    """Values are offsets; the first ones are deleted, a second lies between timestamps."""
    name = f"positions-{type(lab.client).__name__}"
    lab.admin.create(name)
    with lab.producer() as producer:
        for at in range(END):
            producer.send((name, 0), b"%d" % at, timestamp_ms=TIMESTAMP_MS + at * 1000)
        producer.flush()
    assert lab.admin.delete_records((name, 0), START) == START
    yield name
    lab.admin.delete(name)


@pytest.mark.parametrize(
    ("place", "first"),
    [("beginning", START), (START, START), (START + 7, START + 7), (END - 1, END - 1)],
)
def test_a_consumer_begins_at_its_place(lab: Lab, topic: str, place: Place, first: int) -> None:
    with lab.consumer(reset="none") as consumer:
        consumer.assign({(topic, 0): place})
        found = read_count(consumer, END - first)
    assert [(one.offset, one.value) for one in found] == [
        (at, b"%d" % at) for at in range(first, END)
    ]


@pytest.mark.parametrize("place", ["end", END])
def test_a_consumer_at_the_end_sees_only_what_comes(lab: Lab, name: str, place: Place) -> None:
    lab.admin.create(name)
    with (
        lab.producer() as producer,
        lab.consumer(reset="none") as consumer,
    ):
        for at in range(END):
            producer.send((name, 0), b"%d" % at)
        producer.flush()
        consumer.assign({(name, 0): place})
        assert consumer.poll(QUIET_SECONDS) == []
        producer.send((name, 0), b"new")
        producer.flush()
        assert [(one.offset, one.value) for one in read_count(consumer, 1)] == [(END, b"new")]


@pytest.mark.parametrize("place", [START - 1, END + 100])
@pytest.mark.parametrize(("reset", "first"), [("earliest", START), ("latest", END)])
def test_out_of_range_the_policy_says_where_to_go_on(
    lab: Lab, topic: str, place: int, reset: Reset, first: int
) -> None:
    with lab.consumer(reset=reset) as consumer:
        consumer.assign({(topic, 0): place})
        if first == END:
            assert consumer.poll(QUIET_SECONDS) == []
        else:
            assert read_count(consumer, END - START)[0].offset == first


@pytest.mark.parametrize("place", [START - 1, END + 100])
def test_out_of_range_without_a_policy_is_an_error(lab: Lab, topic: str, place: int) -> None:
    with lab.consumer(reset="none") as consumer:
        consumer.assign({(topic, 0): place})
        with pytest.raises(OutOfRange):
            read_count(consumer, 1)


@pytest.mark.parametrize(
    ("timestamp_ms", "found"),
    [
        (0, START),
        (TIMESTAMP_MS + 20_000, 20),
        (TIMESTAMP_MS + 20_001, 21),
        (TIMESTAMP_MS + END * 1000, None),
    ],
)
def test_an_offset_is_found_by_time(
    lab: Lab, topic: str, timestamp_ms: int, found: int | None
) -> None:
    with lab.consumer() as consumer:
        assert consumer.offset_at((topic, 0), timestamp_ms) == found
