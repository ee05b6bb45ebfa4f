"""Plans the compaction of a shape's log: what happens to each entry, by its key.

For every key the last delete, the last insert after it and the updates after both stay, the updates
as one; all entries before them are superseded. docs/reference/formats/shape-compaction.md

Invariant  keys are compared byte by byte, so equal hashes do no harm. `index_entries` reads nothing
           outside its buffer, whatever the bytes are; the other kernels take the starts that it
           found.
"""

from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from varve.kernels.compile import as_int, inlined, kernel
from varve.kernels.hashes import siphash
from varve.kernels.memory import Bytes, address_of, copy_bytes, load_i64, load_u8, load_u32
from varve.shapes.kernels.log_entries import (
    ENTRY_HEAD,
    WHOLE,
    EntryStatus,
    check_entry,
    is_after,
    is_operation,
)
from varve.shapes.kernels.row_members import is_same

Numbers = npt.NDArray[np.int64]
Actions = npt.NDArray[np.uint8]


class Action(IntEnum):
    """What a compaction does with an entry."""

    SUPERSEDED = 0
    """A later insert or delete of the same key replaces it."""
    MERGED = 1
    """An update that is folded into a later one."""
    KEEP = 2
    FOLD = 3
    """The last of several updates, into which the others are folded."""


_UPDATE, _DELETE, _CONTROL = b"udc"

# The state of a key: where its first entry starts, and the numbers of its last delete, of its last
# insert, and of the first and the last update after them.
_START, _DELETED, _INSERTED, _HEAD, _TAIL = range(5)
_KEY_FIELDS = 5


@kernel
def index_entries(
    buffer: Bytes, last_tx: int, last_op: int, starts: Numbers
) -> tuple[int, int, int]:
    """Checks whole entries and finds their starts: EntryStatus, count, position after the last.

    The status is MORE, or the fault of the entry at that position. `last_tx` and `last_op` are
    those of the entry before the buffer. `starts` needs one element for each `ENTRY_BYTES_MIN`
    bytes.
    """
    at, count, end = 0, 0, buffer.size
    while at < end:
        status, size, key_size, _ = check_entry(buffer, at, end)
        if status != WHOLE:
            return status, count, at
        tx, op = load_i64(buffer, at), load_i64(buffer, at + 8)
        if not is_after(tx, op, last_tx, last_op):
            return EntryStatus.BAD_ORDER.value, count, at
        if not is_operation(load_u8(buffer, at + ENTRY_HEAD + key_size)):
            return EntryStatus.BAD_FIELD.value, count, at
        last_tx, last_op = tx, op
        starts[count] = at
        count += 1
        at += size
    return EntryStatus.MORE.value, count, at


@inlined
def _find_slot(buffer: Bytes, start: int, hashed: Any, table: Any) -> int:
    """The slot of an entry's key, or the empty one that is to be its own."""
    slots, hashes, keys = table
    first, key_size = address_of(buffer) + ENTRY_HEAD, load_u32(buffer, start + 16)
    slot = as_int(hashed & np.uint64(slots.size - 1))
    while slots[slot] >= 0:
        key = slots[slot]
        other = keys[key, _START]
        if (
            hashes[key] == hashed
            and load_u32(buffer, other + 16) == key_size
            and is_same(first + other, first + start, key_size)
        ):
            break
        slot = (slot + 1) & (slots.size - 1)
    return slot


@inlined
def _take(keys: Numbers, key: int, index: int, operation: int, links: Numbers) -> None:
    """Records an entry with its key."""
    if operation == _UPDATE:
        if keys[key, _TAIL] < 0:
            keys[key, _HEAD] = index
        else:
            links[keys[key, _TAIL]] = index
        keys[key, _TAIL] = index
        return
    keys[key, _TAIL] = -1
    if operation == _DELETE:
        keys[key, _DELETED] = index
        keys[key, _INSERTED] = -1
    else:
        keys[key, _INSERTED] = index


@inlined
def _decide(keys: Numbers, key: int, actions: Actions, links: Numbers) -> bool:
    """Decides which entries of a key stay; returns whether the key has a row at the end."""
    deleted, inserted, tail = keys[key, _DELETED], as_int(keys[key, _INSERTED]), keys[key, _TAIL]
    if deleted >= 0:
        actions[deleted] = Action.KEEP.value
    if inserted >= 0:
        actions[inserted] = Action.KEEP.value
    if tail < 0:
        return inserted >= 0
    at = keys[key, _HEAD]
    links[tail] = at
    actions[tail] = Action.KEEP.value if at == tail else Action.FOLD.value
    while at != tail:
        actions[at] = Action.MERGED.value
        at = links[at]
    return True


@kernel
def plan_entries(
    buffer: Bytes, starts: Numbers, k0: Any, k1: Any, actions: Actions, links: Numbers
) -> tuple[int, int]:
    """Plans the action of every entry; entries are in the order of their offsets.

    Returns the number of keys, and how many of them have a row at the end. `links` leads from each
    merged update to the next one of its run, and from the last, into which the others are folded,
    back to the first. Pass the secret of the hash as np.uint64.
    """
    count = starts.size
    base = address_of(buffer)
    slot_count = 16
    while slot_count < 2 * count:
        slot_count *= 2
    slots = np.full(slot_count, -1, np.int64)
    hashes = np.empty(count, np.uint64)
    keys = np.full((count, _KEY_FIELDS), -1, np.int64)
    key_count = 0
    for index in range(count):
        start = starts[index]
        key_size = load_u32(buffer, start + 16)
        operation = load_u8(buffer, start + ENTRY_HEAD + key_size)
        if operation == _CONTROL:
            actions[index] = Action.KEEP.value
            continue
        actions[index] = Action.SUPERSEDED.value
        hashed, _ = siphash(base + start + ENTRY_HEAD, key_size, np.uint64(k0), np.uint64(k1))
        slot = _find_slot(buffer, start, hashed, (slots, hashes, keys))
        if slots[slot] < 0:
            slots[slot] = key_count
            hashes[key_count] = hashed
            keys[key_count, _START] = start
            key_count += 1
        _take(keys, slots[slot], index, operation, links)
    row_count = 0
    for key in range(key_count):
        row_count += _decide(keys, key, actions, links)
    return key_count, row_count


@kernel
def divide_entries(
    buffer: Bytes, starts: Numbers, k0: Any, k1: Any, part_count: int, parts: Numbers
) -> None:
    """Assigns each entry to a part by the hash of its key; control entries to the first."""
    base = address_of(buffer)
    for index in range(starts.size):
        start = starts[index]
        key_size = load_u32(buffer, start + 16)
        if load_u8(buffer, start + ENTRY_HEAD + key_size) == _CONTROL:
            parts[index] = 0
            continue
        _, hashed = siphash(base + start + ENTRY_HEAD, key_size, np.uint64(k0), np.uint64(k1))
        parts[index] = np.int64(hashed % np.uint64(part_count))


@kernel
def gather_entries(buffer: Bytes, starts: Numbers, sizes: Numbers, out: Bytes) -> int:
    """Copies the entries at these starts one after another; returns the bytes copied."""
    source, target, at = address_of(buffer), address_of(out), 0
    for index in range(starts.size):
        start, size = starts[index], sizes[index]
        if start < 0 or size < 0 or size > buffer.size - start or size > out.size - at:
            raise IndexError("an entry lies outside the buffer, or out is too short")
        copy_bytes(target + at, source + start, size)
        at += size
    return at


@kernel
def count_entries(buffer: Bytes, starts: Numbers, counts: Numbers) -> None:
    """Counts entries by their operation: `counts` has an element for each byte."""
    for index in range(starts.size):
        key_size = load_u32(buffer, starts[index] + 16)
        counts[load_u8(buffer, starts[index] + ENTRY_HEAD + key_size)] += 1


def warm() -> None:
    """Compile for the argument types in use."""
    secret, buffer, numbers = np.uint64(0), np.empty(0, np.uint8), np.empty(0, np.int64)
    index_entries(buffer, 0, 0, numbers)
    plan_entries(buffer, numbers, secret, secret, buffer, numbers)
    divide_entries(buffer, numbers, secret, secret, 1, numbers)
    gather_entries(buffer, numbers, numbers, buffer)
    count_entries(buffer, numbers, np.zeros(256, np.int64))
