"""A client without a library: requests that were made before are sent, answers are counted.

A library spends more on a record than a broker does. Here nothing is left to do per record on the
client's side, so that what is measured is the broker.

Invariant  answers are looked at for errors, outside of the time that is taken.
"""

import socket
import time
from collections.abc import Iterable, Sequence
from struct import Struct
from types import TracebackType
from typing import Final, Self

from benchmarks.server.brokers import pause
from varve.wire import ApiKey, decode, encode, write_request_header
from varve.wire.messages.data import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)

IN_FLIGHT: Final = 5
"""Produce requests that wait for their answers: what clients of Kafka allow themselves."""
PRODUCE_VERSION: Final = 12
FETCH_VERSION: Final = 12
_LENGTH: Final = Struct(">i")
_ANSWER_HEADER_BYTES: Final = 5
_RECEIVE_BYTES: Final = 4 << 20
_TIMEOUT_SECONDS: Final = 60.0
_TRIES: Final = 200
_TRY_SECONDS: Final = 0.02


class WireClient:
    """One connection."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=_TIMEOUT_SECONDS)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = memoryview(bytearray(_RECEIVE_BYTES))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._socket.close()

    def produce_first(self, frame: bytes) -> None:
        """One batch, as often as it takes until the new topic is known to the broker."""
        for _ in range(_TRIES):
            self._socket.sendall(frame)
            if not _error_of(self._answer()):
                return
            pause(_TRY_SECONDS)
        raise AssertionError("the topic was not served in time")

    def produce(self, frames: Iterable[bytes]) -> float:
        """Seconds until all are acknowledged, `IN_FLIGHT` of them under way at a time."""
        send, answers = self._socket.sendall, list[bytes]()
        waiting = 0
        began = time.perf_counter()
        for frame in frames:
            if waiting == IN_FLIGHT:
                answers.append(self._answer())
                waiting -= 1
            send(frame)
            waiting += 1
        answers += [self._answer() for _ in range(waiting)]
        seconds = time.perf_counter() - began
        errors = {error for answer in answers if (error := _error_of(answer))}
        if errors:
            raise AssertionError(f"the broker refused batches: error codes {errors}")
        return seconds

    def fetch(self, frames: Sequence[bytes], *, batch_bytes: int) -> float:
        """Seconds to read on to the end, one request after another as a consumer does.

        `frames` ask for each batch in turn; as many are passed over as an answer has whole ones.
        """
        at = 0
        began = time.perf_counter()
        while at < len(frames):
            self._socket.sendall(frames[at])
            count = self._skip_answer() // batch_bytes
            if not count:
                raise AssertionError(f"no whole batch came for request {at} of {len(frames)}")
            at += count
        return time.perf_counter() - began

    def _answer(self) -> bytes:
        size = _LENGTH.unpack(self._receive(_LENGTH.size))[0]
        return bytes(self._receive(size))

    def _receive(self, size: int) -> memoryview:
        view, filled = self._buffer[:size], 0
        while filled < size:
            filled += self._receive_into(view[filled:])
        return view

    def _skip_answer(self) -> int:
        size: int = _LENGTH.unpack(self._receive(_LENGTH.size))[0]
        left = size
        while left:
            left -= self._receive_into(self._buffer[: min(left, _RECEIVE_BYTES)])
        return size

    def _receive_into(self, view: memoryview) -> int:
        count = self._socket.recv_into(view)
        if not count:
            raise AssertionError("the broker closed the connection")
        return count


def _error_of(answer: bytes) -> int:
    response = decode(ProduceResponse, PRODUCE_VERSION, answer, _ANSWER_HEADER_BYTES)
    return max(one.error_code for topic in response.responses for one in topic.partition_responses)


def make_produce(topic: str, batch: bytes, *, acks: int) -> bytes:
    """The frame of a request with one batch for partition 0."""
    data = TopicProduceData(topic, partition_data=[PartitionProduceData(0, memoryview(batch))])
    request = ProduceRequest(acks=acks, timeout_ms=30_000, topic_data=[data])
    header = write_request_header(ApiKey.PRODUCE, PRODUCE_VERSION, 1, "bench", is_flexible=True)
    return _framed(encode(request, PRODUCE_VERSION, header))


def make_fetch(topic: str, *, offset: int, max_bytes: int) -> bytes:
    """The frame of a request for partition 0 from an offset on, outside of any session."""
    asked = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=max_bytes)
    request = FetchRequest(
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=max_bytes,
        topics=[FetchTopic(topic, partitions=[asked])],
    )
    header = write_request_header(ApiKey.FETCH, FETCH_VERSION, 1, "bench", is_flexible=True)
    return _framed(encode(request, FETCH_VERSION, header))


def _framed(message: bytearray) -> bytes:
    return _LENGTH.pack(len(message)) + message
