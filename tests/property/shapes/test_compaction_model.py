"""Whoever reads a shape's log, in any steps and between any compactions, ends with its rows.

Carries S3 and S6.
"""

import json
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.support.rounds import machine_settings
from tests.support.shape_entries import decode_entries
from tests.support.shape_messages import (
    CONTROL,
    DELETE,
    INSERT,
    UPDATE,
    State,
    apply_all,
    apply_message,
    make_entry,
)
from varve.disk import MemoryFileSystem
from varve.foundation.clock import ManualClock
from varve.foundation.errors import Corrupt
from varve.shapes.compaction.log_compaction import (
    Balance,
    Block,
    LogCompaction,
    LogPrefix,
    compact_block,
    index_block,
    join_blocks,
)
from varve.shapes.kernels.log_entries import encode_entries
from varve.shapes.offset import ShapeOffset
from varve.shapes.storage.log_writer import ShapeEntry

SECRET = (7, 11)
NAMES = ("a", "b", 'c"\\,{[')

values = st.dictionaries(
    st.sampled_from(NAMES),
    st.one_of(
        st.none(),
        st.integers(-(10**30), 10**30),
        st.text(max_size=5),
        st.lists(st.text(max_size=3), max_size=2),
        st.dictionaries(st.text(max_size=2), st.integers(0, 9), max_size=2),
    ),
    max_size=3,
)
changes = st.tuples(
    st.sampled_from([INSERT, UPDATE, UPDATE, UPDATE, DELETE, CONTROL]),
    st.sampled_from(["k", "kk", 'é"x', "z"]),
    values,
    st.one_of(st.none(), values),
    st.integers(0, 2),
)


def _entries(
    drawn: list[tuple[int, str, dict[str, Any], dict[str, Any] | None, int]],
) -> list[ShapeEntry]:
    """Entries with one or several operations in a transaction."""
    offset, entries = ShapeOffset(1, 0), []
    for operation, key, value, old_value, step in drawn:
        offset = ShapeOffset(offset.tx + step, 0) if step else ShapeOffset(offset.tx, offset.op + 2)
        more = {"old_value": old_value} if operation == UPDATE else {}
        entries.append(make_entry(offset, operation, key, {"id": key, **value}, **more))
    return entries


def _block(entries: list[ShapeEntry]) -> Block:
    status, count, data, _ = encode_entries(
        list(entries), start=0, json_room=1 << 40, byte_room=1 << 40, last=(0, 0)
    )
    assert (status, count) == (0, len(entries))
    return index_block(data, "log", 0)


def _decode(block: Block) -> list[ShapeEntry]:
    return [stored.entry for stored in decode_entries(block.data.tobytes())]


def _compact(block: Block) -> Block:
    return compact_block(block, SECRET, "log").block


def _read(version: Block, after: ShapeOffset, until: ShapeOffset) -> list[bytes]:
    return [entry.json for entry in _decode(version) if after < entry.offset <= until]


@given(st.lists(changes, min_size=1, max_size=40), st.data())
@machine_settings(40)
def test_a_reader_of_any_versions_of_the_log_ends_with_the_rows(
    drawn: list[Any], data: st.DataObject
) -> None:
    """Versions differ in how far, how often and in how many rounds they were compacted."""
    entries = _entries(drawn)
    whole = _block(entries)
    expected = apply_all({}, [entry.json for entry in entries])
    versions, at = [whole], 0
    while at < len(entries) and len(versions) < 5:
        at = data.draw(st.integers(at + 1, len(entries)))
        front = [entry for entry in _decode(versions[-1]) if entry.offset <= entries[at - 1].offset]
        rest = entries[at:]
        compacted = _compact(_flagged(versions[-1], len(front)))
        versions.append(join_blocks([compacted, _block(rest)]) if rest else compacted)
    state: State = {}
    place = ShapeOffset(0, 0)
    for number, version in enumerate(versions):
        is_last = number == len(versions) - 1
        stops = [entry.offset for entry in entries if entry.offset >= place] or [place]
        until = entries[-1].offset if is_last else data.draw(st.sampled_from([place, *stops]))
        apply_all(state, _read(version, place, until))
        place = max(place, until)
    assert state == expected


few_keys = st.tuples(
    st.sampled_from([INSERT, UPDATE, UPDATE, DELETE]),
    st.sampled_from(["k", "z"]),
    st.fixed_dictionaries({"a": st.integers(0, 9)}),
    st.none(),
    st.integers(0, 1),
)


@given(st.lists(few_keys, min_size=3, max_size=12), st.data())
@machine_settings(100)
def test_a_reader_with_a_subset_ends_with_the_rows(drawn: list[Any], data: st.DataObject) -> None:
    """It leaves out what the subset contains, of the compacted part and of the rest."""
    entries = _entries(drawn)
    boundary = data.draw(st.integers(1, len(entries)))
    rest = entries[boundary:]
    compacted = _compact(_block(entries[:boundary]))
    version = join_blocks([compacted, _block(rest)]) if rest else compacted
    seen_tx = data.draw(st.sampled_from([entry.offset.tx for entry in entries]))
    place = data.draw(st.sampled_from([ShapeOffset(0, 0), *(entry.offset for entry in entries)]))
    contained = [entry.json for entry in entries if entry.offset.tx <= seen_tx]
    state = apply_all({}, contained)
    keys = set(state)
    for message in map(
        json.loads, _read(version, min(place, ShapeOffset(seen_tx, 0)), entries[-1].offset)
    ):
        txids = message["headers"].get("txids", [])
        if not (message.get("key") in keys and txids and max(txids) <= seen_tx):
            apply_message(state, message)
    assert state == apply_all({}, [entry.json for entry in entries])


def _flagged(version: Block, count: int) -> Block:
    """The first entries of a version, byte for byte."""
    return version.take(np.arange(count))


@given(st.lists(changes, min_size=1, max_size=60))
@machine_settings(40)
def test_ten_rounds_equal_one(drawn: list[Any]) -> None:
    entries = _entries(drawn)
    once = _compact(_block(entries))
    rounds = _block(entries[:1])
    for number in range(10):
        start, end = (max(1, len(entries) * at // 10) for at in (number, number + 1))
        piece = entries[start:end]
        rounds = _compact(join_blocks([rounds, _block(piece)]) if piece else rounds)
    assert rounds.data.tobytes() == once.data.tobytes()
    assert _compact(once).data.tobytes() == once.data.tobytes()


@given(st.lists(changes, min_size=1, max_size=60))
@machine_settings(40)
def test_what_stays_is_bounded_by_the_keys_and_equals_the_model(drawn: list[Any]) -> None:
    entries = _entries(drawn)
    compacted = _decode(_compact(_block(entries)))
    assert compacted[-1].offset == entries[-1].offset
    keys = {entry.key for entry in entries if entry.operation != CONTROL}
    for key in keys:
        stays = bytes(entry.operation for entry in compacted if entry.key == key)
        assert stays in (b"d", b"i", b"u", b"di", b"du", b"iu", b"diu")
        assert _model(entries, key) == [
            (entry.offset, json.loads(entry.json)) for entry in compacted if entry.key == key
        ]
    controls = [entry for entry in entries if entry.operation == CONTROL]
    assert [entry for entry in compacted if entry.operation == CONTROL] == controls


def _model(entries: list[ShapeEntry], key: bytes) -> list[tuple[ShapeOffset, Any]]:
    """What stays of a key, said in another way."""
    own = [entry for entry in entries if entry.key == key and entry.operation != CONTROL]
    stays: list[tuple[ShapeOffset, Any]] = []
    for wanted in (DELETE, INSERT):
        places = [at for at, entry in enumerate(own) if entry.operation == wanted]
        if places:
            stays.append((own[places[-1]].offset, _stripped(own[places[-1]])))
            own = own[places[-1] + 1 :]
    if own:
        merged = _stripped(own[0])
        for entry in own[1:]:
            newer = json.loads(entry.json)
            merged["value"].update(newer["value"])
            merged["headers"]["txids"] = newer["headers"]["txids"]
            if "old_value" in newer:
                merged["old_value"] = newer["old_value"] | merged.get("old_value", {})
        stays.append((own[-1].offset, merged))
    return stays


def _stripped(entry: ShapeEntry) -> Any:
    message = json.loads(entry.json)
    headers = message["headers"]
    kept = ("operation", "relation", "txids")
    return message | {"headers": {name: headers[name] for name in kept}}


@given(
    st.lists(st.tuples(st.integers(0, 400), st.sampled_from(b'{}[]",:\\ a1')), max_size=6),
    st.integers(0, 3),
    st.integers(0, 200),
)
@machine_settings(40)
def test_damaged_messages_are_refused_or_taken_and_never_read_beyond(
    damage: list[tuple[int, int]], broken: int, cut: int
) -> None:
    """What a message says is not believed; whatever it says, its neighbours stay as they are."""
    entries = [
        make_entry(
            ShapeOffset(tx, 0), UPDATE, "k", {"id": "k", "n": [tx, {"a": "x"}]}, old_value={"n": 0}
        )
        for tx in range(1, 5)
    ]
    text = bytearray(entries[broken].json)
    for position, byte in damage:
        text[position % len(text)] = byte
    entries[broken] = entries[broken]._replace(json=bytes(text[: len(text) - cut % len(text)]))
    entries.append(make_entry(ShapeOffset(9, 0), INSERT, "other", {"id": "other"}))
    try:
        compacted = _decode(_compact(_block(entries)))
    except Corrupt:
        return
    assert [entry.offset for entry in compacted] == [ShapeOffset(4, 0), ShapeOffset(9, 0)]
    assert json.loads(compacted[1].json) == _stripped(entries[4])


@given(st.lists(changes, min_size=1, max_size=80), st.integers(1200, 6000), st.booleans())
@machine_settings(40)
def test_in_parts_it_is_the_same(drawn: list[Any], memory_bytes: int, is_split: bool) -> None:
    block = _block(_entries(drawn))
    fs = MemoryFileSystem(ManualClock())
    half = int(block.starts[block.starts.size // 2]) if is_split else block.data.size
    ranges = []
    for name, piece in (("/one", block.data[:half]), ("/two", block.data[half:])):
        file = fs.open_writable(name)
        file.write_at(0, piece.tobytes())
        ranges.append(LogPrefix(file, piece.size))
    balance = Balance()
    blocks = list(
        LogCompaction(
            ranges,
            memory_bytes=memory_bytes,
            secret=SECRET,
            fs=fs,
            scratch="/scratch/handle",
            balance=balance,
            check_open=lambda: None,
        ).blocks()
    )
    once = compact_block(block, SECRET, "log")
    assert b"".join(part.data.tobytes() for part in blocks) == once.block.data.tobytes()
    assert (balance.entries_in, balance.keys) == (block.starts.size, once.keys)
    assert balance.merged + balance.superseded == once.merged + once.superseded
    balance.entries_out = sum(part.starts.size for part in blocks)
    balance.bytes_out = once.block.data.size
    balance.check("here")
    assert not fs.exists("/scratch/handle")
