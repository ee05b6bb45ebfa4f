"""G7: whatever the bytes of an evidence file are, reading gives a value or names the lines."""

import contextlib

from hypothesis import given
from hypothesis import strategies as st

from tests.support.balances import make_compaction, make_expiry
from varve.cleaning.removals.removal import (
    Reason,
    Removal,
    RemovalKind,
    SegmentSummary,
    decode_removal,
    encode_removal,
)
from varve.cleaning.removals.removal_log import REMOVAL_LOG_FILE, RemovalLog, read_removal_log
from varve.commit_log import TopicPartition
from varve.disk import MemoryFileSystem
from varve.foundation.clock import ManualClock
from varve.foundation.errors import Corrupt

DIRECTORY = "/orders-0"
PATH = f"{DIRECTORY}/{REMOVAL_LOG_FILE}"
NUMBERS = st.integers(0, 2**63 - 1)
FIGURES = st.lists(
    st.builds(
        SegmentSummary, NUMBERS, NUMBERS, NUMBERS, NUMBERS, st.none() | st.integers(0, 2**32 - 1)
    ),
    max_size=3,
).map(tuple)
COUNTS = st.dictionaries(st.sampled_from(list(Reason)), NUMBERS)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(), children),
    max_leaves=8,
)


def make_disk(data: bytes) -> MemoryFileSystem:
    fs = MemoryFileSystem(ManualClock())
    fs.make_directory(DIRECTORY)
    with fs.open_writable(PATH) as file:
        file.write_at(0, data)
    return fs


def make_file() -> bytes:
    fs = make_disk(b"")
    evidence = RemovalLog(fs, DIRECTORY)
    evidence.append(make_compaction(1))
    evidence.mark_done(1)
    evidence.append(make_expiry(3))
    return fs.read(PATH)


WHOLE = make_file()


def check_goes_on(fs: MemoryFileSystem) -> None:
    """Reading names what is wrong and raises nothing; an append adds a line that fits."""
    before = read_removal_log(fs, DIRECTORY)
    evidence = RemovalLog(fs, DIRECTORY)
    evidence.append(make_expiry(evidence.next_id()))
    after = read_removal_log(fs, DIRECTORY)
    assert after.faults == before.faults
    assert len(after.chains) == len(before.chains) + 1
    assert after.torn_bytes == 0


@given(st.binary(max_size=200))
def test_any_bytes_are_read_and_continued(data: bytes) -> None:
    check_goes_on(make_disk(data))


@given(st.integers(0, len(WHOLE) - 1), st.integers(1, 255))
def test_any_changed_byte_is_noticed(position: int, change: int) -> None:
    data = bytearray(WHOLE)
    data[position] ^= change
    fs = make_disk(bytes(data))
    found = read_removal_log(fs, DIRECTORY)
    assert found.faults or found.torn_bytes
    check_goes_on(fs)


@given(st.integers(0, len(WHOLE)), st.integers(0, 400))
def test_any_bytes_taken_out_of_the_middle_are_noticed(start: int, count: int) -> None:
    data = WHOLE[:start] + WHOLE[start + count :]
    found = read_removal_log(make_disk(data), DIRECTORY)
    is_prefix = WHOLE.startswith(data)
    assert found.faults or found.torn_bytes or is_prefix


@given(
    NUMBERS,
    st.builds(TopicPartition, st.text(max_size=9), st.integers(0, 9)),
    st.sampled_from(RemovalKind),
    FIGURES,
    FIGURES,
    COUNTS,
    COUNTS,
    st.text(max_size=9),
)
def test_balances_go_through_json_unchanged(
    id: int,
    partition: TopicPartition,
    kind: RemovalKind,
    inputs: tuple[SegmentSummary, ...],
    outputs: tuple[SegmentSummary, ...],
    records: dict[Reason, int],
    sizes: dict[Reason, int],
    text: str,
) -> None:
    balance = Removal(
        id=id,
        partition=partition,
        kind=kind,
        at_ms=5,
        inputs=inputs,
        outputs=outputs,
        records=records,
        bytes=sizes,
        keys_before=text,
        keys_after=text,
        rule=text,
        end_offset=7,
    )
    assert decode_removal(id, encode_removal(balance)) == balance


@given(st.sampled_from(sorted(encode_removal(make_compaction()))), JSON)
def test_any_value_in_any_field_gives_a_balance_or_a_named_error(name: str, value: object) -> None:
    with contextlib.suppress(Corrupt):
        decode_removal(1, {**encode_removal(make_compaction()), name: value})
