"""Bytes from outside that are broken give named errors, within bounds of time and memory."""

import random
import resource

import pytest
from hypothesis import given
from hypothesis import strategies as st

from varve.foundation.errors import Corrupt
from varve.records import Batch, Codec, Record, build_batch, compress, decode_header, decompress

LIMIT = 1 << 20
COMPRESSED = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD]
MUTATIONS_PER_SEED = 2500


def _contents(source: random.Random) -> bytes:
    kind = source.randrange(3)
    if kind == 0:
        return source.randbytes(source.randrange(3000))
    if kind == 1:
        return bytes(source.randrange(200_000))
    return b"".join(
        source.choices([b"lake", b"layer", b"log", b"\0\0\0"], k=source.randrange(3000))
    )


def _mutate(payload: bytes, source: random.Random) -> bytes:
    changed = bytearray(payload)
    for _ in range(source.randint(1, 4)):
        kind = source.randrange(6)
        at = source.randrange(len(changed) + 1)
        if kind == 0 and changed:
            changed[at % len(changed)] ^= 1 << source.randrange(8)
        elif kind == 1 and changed:
            changed[at % len(changed)] = source.choice([0, 1, 0x7F, 0x80, 0xFF])
        elif kind == 2:
            del changed[at : at + source.randrange(40)]
        elif kind == 3:
            changed[at:at] = source.randbytes(source.randrange(9))
        elif kind == 4:
            changed[at:at] = changed[at : at + source.randrange(200)]
        else:
            # Headers and lengths stand in front: change them more often than their share.
            changed[: source.randrange(12)] = source.randbytes(source.randrange(12))
    return bytes(changed)


@pytest.mark.parametrize("codec", COMPRESSED)
def test_mutated_payloads_give_named_errors_or_bounded_content(
    codec: Codec, rounds_factor: int
) -> None:
    source = random.Random(20 + codec)
    payloads = [compress(codec, _contents(source)) for _ in range(25)]
    messages: list[str] = []
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(MUTATIONS_PER_SEED * rounds_factor):
        payload = _mutate(source.choice(payloads), source)
        try:
            content = decompress(codec, payload, where="fuzz", limit_bytes=LIMIT)
        except Corrupt as error:
            messages.append(str(error))
        else:
            assert len(content) <= LIMIT
    assert all(message.startswith("fuzz: ") for message in messages)
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown_kib < 64 * 1024


@pytest.mark.parametrize("codec", list(Codec))
def test_mutated_batches_give_named_errors_only(codec: Codec, rounds_factor: int) -> None:
    source = random.Random(40 + codec)
    records = [
        Record(
            source.randbytes(5), source.randbytes(60), (("h", b"x"), ("", None)), timestamp=index
        )
        for index in range(20)
    ]
    valid = build_batch(records, codec=codec)
    for _ in range(MUTATIONS_PER_SEED * rounds_factor):
        try:
            batch = Batch(_mutate(valid, source))
            batch.is_valid_crc()
            columns = batch.columns(limit_bytes=LIMIT)
            assert len(columns.records()) == batch.header.records_count
            columns.hash_keys(bytes(16))
        except Corrupt:
            continue


@given(st.sampled_from(COMPRESSED), st.binary(max_size=300))
def test_any_bytes_as_payload_give_named_errors_or_content(codec: Codec, payload: bytes) -> None:
    try:
        decompress(codec, payload, limit_bytes=LIMIT)
    except Corrupt:
        return


@given(st.binary(max_size=200), st.integers(-10, 210))
def test_any_bytes_as_header_give_named_errors_or_a_header(data: bytes, position: int) -> None:
    try:
        header = decode_header(data, position)
    except Corrupt:
        return
    assert header.magic == 2
    assert header.size >= 61
