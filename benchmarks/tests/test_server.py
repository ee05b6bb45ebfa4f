"""The measures of the server: what they send is what it should be, and its aims are the stated."""

import pytest

from benchmarks.generators import make_batches
from benchmarks.server.suite import SERVER
from benchmarks.server.throughput import aim_for
from benchmarks.server.wire_client import (
    FETCH_VERSION,
    PRODUCE_VERSION,
    make_fetch,
    make_produce,
)
from varve.wire import ApiKey, decode, read_request_header, skip_tags
from varve.wire.messages.data import FetchRequest, ProduceRequest

LENGTH_BYTES = 4


def test_produce_frame_carries_the_batch_as_it_is() -> None:
    batch = make_batches(1, value_bytes=100, batch_bytes=1 << 10)[0]
    frame = make_produce("topic", batch, acks=-1)
    body = memoryview(frame)[LENGTH_BYTES:]
    header = read_request_header(body)
    request = decode(ProduceRequest, PRODUCE_VERSION, body, skip_tags(body, header.end))
    records = request.topic_data[0].partition_data[0].records
    assert int.from_bytes(frame[:LENGTH_BYTES], "big") == len(body)
    assert (header.api_key, request.acks) == (ApiKey.PRODUCE, -1)
    assert bytes(records or b"") == batch


def test_fetch_frame_asks_from_the_offset_on() -> None:
    body = memoryview(make_fetch("topic", offset=77, max_bytes=1 << 20))[LENGTH_BYTES:]
    header = read_request_header(body)
    request = decode(FetchRequest, FETCH_VERSION, body, skip_tags(body, header.end))
    asked = request.topics[0].partitions[0]
    assert header.api_key == ApiKey.FETCH
    assert (asked.fetch_offset, asked.partition_max_bytes) == (77, 1 << 20)


@pytest.mark.parametrize(
    ("request_bytes", "limit"), [(16 << 10, 0.5), (64 << 10, 0.5), (128 << 10, 1), (1 << 20, 1)]
)
def test_large_requests_have_the_higher_aim(request_bytes: int, limit: float) -> None:
    assert aim_for(request_bytes).limit == limit


def test_full_run_asks_every_measure_at_two_sizes_or_more() -> None:
    assert all(len(one.default_sizes(quick=False)) >= 2 for one in SERVER.measures)
