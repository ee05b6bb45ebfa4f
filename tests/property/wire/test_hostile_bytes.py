"""Whatever bytes come, reading ends with a message or MalformedMessage, and takes little memory
(G7).
"""

import random
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from tests.support.hostile_requests import mutate
from tests.support.random_messages import MessageMaker
from varve.foundation.errors import MalformedMessage
from varve.wire import APIS, Api, Message, decode, encode, read_request_header, skip_tags
from varve.wire.compiler import write_uvarint
from varve.wire.messages.cluster import MetadataRequest
from varve.wire.schema import NO_ID, Kind, wire_fields

_MANY = 20_000
_SMALLEST = {Kind.STRING: "", Kind.INT32: 0, Kind.INT8: 0, Kind.INT64: 0, Kind.UUID: NO_ID}
_PEAK_BYTES = 1 << 20
"""Most of it is the function that is made when a version is first read."""


@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.key.name.lower())
def test_mutants_are_read_or_refused(api: Api, rounds_factor: int) -> None:
    chance = random.Random(int(api.key))
    for number in range(150 * rounds_factor):
        version = chance.randint(api.versions.first, api.versions.last)
        kind = chance.choice((api.request, api.response))
        data = encode(MessageMaker(number).make(kind, version), version)
        mutate(data, chance)
        with suppress(MalformedMessage):
            decode(kind, version, data)


@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.key.name.lower())
def test_lengths_that_lie_take_no_memory(api: Api) -> None:
    data = b"\x7f\xff\xff\xff" * 16
    for version in (api.versions.first, api.versions.last):
        tracemalloc.start()
        for kind, body in ((api.request, b"\x00\x02" + data[2:]), (api.response, data)):
            with suppress(MalformedMessage):
                decode(kind, version, body)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < _PEAK_BYTES


def _with_many_elements(kind: type[Message], version: int, count: int = _MANY) -> bytearray | None:
    """A message whose first array has many of the smallest elements."""
    message: Any = kind()
    for name, field, _ in wire_fields(kind):
        if field.type.kind is Kind.ARRAY and version in field.versions:
            element = field.type.element
            assert element is not None
            one = element.struct() if element.struct is not None else _SMALLEST[element.kind]
            setattr(message, name, [one] * count)
            return encode(message, version)
    return None


@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.key.name.lower())
def test_more_elements_than_allowed_are_refused_before_they_are_made(api: Api) -> None:
    for version in (api.versions.first, api.versions.last):
        data = _with_many_elements(api.request, version)
        if data is None:
            continue
        with suppress(MalformedMessage):  # the function is made outside what is measured
            decode(api.request, version, b"")
        tracemalloc.start()
        with pytest.raises(MalformedMessage, match="more array elements"):
            decode(api.request, version, data, element_count_max=_MANY - 1)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < _PEAK_BYTES
        decode(api.request, version, data, element_count_max=_MANY + len(data))


def test_unknown_tagged_fields_count_as_elements() -> None:
    tags = b"".join(bytes((0x80 | tag & 0x7F, tag >> 7, 0)) for tag in range(1000, 2000))  # empty
    body = encode(MetadataRequest([]), 12)[:-1] + b"\xe8\x07" + tags
    decode(MetadataRequest, 12, body, element_count_max=1000)
    with pytest.raises(MalformedMessage, match="more array elements"):
        decode(MetadataRequest, 12, body, element_count_max=999)
    with pytest.raises(MalformedMessage, match="tagged fields"):
        skip_tags(memoryview(b"\xe8\x07" + tags), 0)


def test_random_headers_are_read_or_refused(rounds_factor: int) -> None:
    chance = random.Random(7)
    for _ in range(5_000 * rounds_factor):
        data = memoryview(chance.randbytes(chance.randint(0, 40)))
        try:
            header = read_request_header(data)
            assert header.end <= len(data)
            assert skip_tags(data, header.end) <= len(data)
        except MalformedMessage:
            pass


_SIZE = 16 << 10
_TIMES = 8
_MARGIN = 3
_NOISE_SECONDS = 0.002


def _uvarint(value: int) -> bytes:
    out = bytearray()
    write_uvarint(out, value)
    return bytes(out)


def _attacks(kind: type[Message], version: int, size: int) -> Iterator[tuple[str, bytes]]:
    """Bytes of about this size that a decoder might read more than once."""
    many = _with_many_elements(kind, version, size // 8)
    if many is not None:
        yield "elements", bytes(many)
    for byte in b"\x00\x01\x02\x05":
        yield f"bytes {byte}", bytes([byte]) * size
    if version < kind.FLEXIBLE:
        return
    start = bytes(encode(kind(), version)[:-1])
    count = size // 4
    ascending = b"".join(_uvarint(1_000 + number) + b"\x00" for number in range(count))
    yield "unknown tags", start + _uvarint(count) + ascending
    for _, field, _ in wire_fields(kind):
        if field.tag is None or version not in field.versions:
            continue
        # A text of 37 KB, which a tag of three bytes has no place for; all of it is UTF-8.
        one = bytes([field.tag, 3]) + b"\xc2\xa0\x02"
        yield f"tag {field.tag}", start + _uvarint(size // len(one)) + one * (size // len(one))


def _decode_seconds(kind: type[Message], version: int, data: bytes) -> float:
    began = time.thread_time()
    with suppress(MalformedMessage):
        decode(kind, version, data)
    return time.thread_time() - began


@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.key.name.lower())
def test_the_time_of_reading_grows_with_the_bytes_and_no_faster(
    api: Api, rounds_factor: int
) -> None:
    is_long = rounds_factor > 1
    first = api.versions.first if is_long else api.versions.last
    for version in range(first, api.versions.last + 1):
        for kind in (api.request, api.response) if is_long else (api.request,):
            small, large = (_attacks(kind, version, size) for size in (_SIZE, _TIMES * _SIZE))
            for (what, few), (_, many) in zip(small, large, strict=True):
                allowed = len(many) / len(few) * _MARGIN
                for _ in range(3):  # of a busy machine only one must be right
                    least = _decode_seconds(kind, version, few) + _NOISE_SECONDS
                    most = _decode_seconds(kind, version, many)
                    if most < allowed * least:
                        break
                else:
                    raise AssertionError(f"{kind.__name__} {version}, {what}: {least} and {most} s")
