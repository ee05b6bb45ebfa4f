"""What becomes of each entry of a shape's log when it is compacted, by its key.

For every key the last delete, the last insert behind it and the updates behind both stay, the
updates as one; all before them is superseded. docs/formats/shape-compaction.md

Invariant  keys are compared byte by byte, so equal hashes do no harm. `index_entries` reads nothing
           outside its buffer, whatever the bytes say; the other kernels take the starts it gave.
"""

from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from varve.kernels.batch_build import copy_bytes
from varve.kernels.compile import inlined, kernel
from varve.kernels.crc import crc32c
from varve.kernels.key_hash import siphash
from varve.kernels.loads import Bytes, load_i64, load_u8, load_u32
from varve.kernels.peeks import peek_u8, start_of

Numbers = npt.NDArray[np.int64]
Actions = npt.NDArray[np.uint8]

ENTRY_HEAD = 20
"""Bytes of an entry before its key."""
ENTRY_MIDDLE = 10
"""Bytes between key and JSON: operation, flag, JSON size."""
ENTRY_CRC = 4
ENTRY_FIXED = ENTRY_HEAD + ENTRY_MIDDLE + ENTRY_CRC


class Action(IntEnum):
    """What becomes of an entry."""

    SUPERSEDED = 0
    """An insert or delete of the same key behind it makes it void."""
    MERGED = 1
    """An update that goes into a later one."""
    KEEP = 2
    FOLD = 3
    """The last of several updates: it takes the others in."""


class IndexStatus(IntEnum):
    """How the walk over entries ended."""

    OK = 0
    """At the end of the buffer, or before an entry that it holds in part."""
    BAD_CRC = 1
    BAD_SIZE = 2
    BAD_ORDER = 3
    BAD_OPERATION = 4


_SUPERSEDED = int(Action.SUPERSEDED)
_MERGED = int(Action.MERGED)
_KEEP = int(Action.KEEP)
_FOLD = int(Action.FOLD)
_OK = int(IndexStatus.OK)
_BAD_CRC = int(IndexStatus.BAD_CRC)
_BAD_SIZE = int(IndexStatus.BAD_SIZE)
_BAD_ORDER = int(IndexStatus.BAD_ORDER)
_BAD_OPERATION = int(IndexStatus.BAD_OPERATION)
_INSERT, _UPDATE, _DELETE, _CONTROL = b"iudc"
_SIZE_MAX = 1 << 48


@kernel
def index_entries(
    buffer: Bytes, last_tx: int, last_op: int, starts: Numbers
) -> tuple[int, int, int]:
    """Where each whole entry starts, checked: IndexStatus, their count, the position behind them.

    `last_tx` and `last_op` are those of the entry before the buffer. There is room for all when
    `starts` has one place for each `ENTRY_FIXED` bytes.
    """
    at, count, end = 0, 0, buffer.size
    while end - at >= ENTRY_HEAD:
        key_size = load_u32(buffer, at + 16)
        if end - at - ENTRY_FIXED < key_size:
            break
        json_size = load_i64(buffer, at + ENTRY_HEAD + key_size + 2)
        if json_size < 0 or json_size > _SIZE_MAX:
            return _BAD_SIZE, count, at
        size = ENTRY_FIXED + key_size + json_size
        if end - at < size:
            break
        crc_at = at + size - ENTRY_CRC
        if crc32c(buffer, at, crc_at) != load_u32(buffer, crc_at):
            return _BAD_CRC, count, at
        tx, op = load_i64(buffer, at), load_i64(buffer, at + 8)
        if tx < last_tx or (tx == last_tx and op <= last_op):
            return _BAD_ORDER, count, at
        operation = load_u8(buffer, at + ENTRY_HEAD + key_size)
        if (
            operation != _INSERT
            and operation != _UPDATE
            and operation != _DELETE
            and operation != _CONTROL
        ):
            return _BAD_OPERATION, count, at
        last_tx, last_op = tx, op
        starts[count] = at
        count += 1
        at += size
    return _OK, count, at


@inlined
def is_same(first: int, second: int, size: int) -> bool:
    """Whether the bytes at two addresses are equal."""
    index = 0
    while index < size and peek_u8(first + index) == peek_u8(second + index):
        index += 1
    return index == size


@kernel
def plan_entries(
    buffer: Bytes, starts: Numbers, k0: Any, k1: Any, actions: Actions, links: Numbers
) -> tuple[int, int]:
    """Decide on every entry, in the order of their offsets.

    Gives the number of keys, and how many of them have a row at the end.

    `links` leads from each update that is merged to the next one of its run, and from the last, the
    one to fold into, back to the first. Pass the secret of the hash as np.uint64.
    """
    count = starts.size
    base = start_of(buffer)
    room = 16
    while room < 2 * count:
        room *= 2
    slots = np.full(room, -1, np.int64)
    hashes = np.empty(count, np.uint64)
    key_of = np.empty(count, np.int64)
    deletes = np.full(count, -1, np.int64)
    inserts = np.full(count, -1, np.int64)
    heads = np.full(count, -1, np.int64)
    tails = np.full(count, -1, np.int64)
    groups = 0
    for index in range(count):
        start = starts[index]
        key_size = load_u32(buffer, start + 16)
        operation = load_u8(buffer, start + ENTRY_HEAD + key_size)
        if operation == _CONTROL:
            actions[index] = _KEEP
            continue
        actions[index] = _SUPERSEDED
        key = base + start + ENTRY_HEAD
        hashed, _ = siphash(key, key_size, np.uint64(k0), np.uint64(k1))
        slot = np.int64(hashed & np.uint64(room - 1))
        while slots[slot] >= 0:
            group = slots[slot]
            other = key_of[group]
            if (
                hashes[group] == hashed
                and load_u32(buffer, other + 16) == key_size
                and is_same(base + other + ENTRY_HEAD, key, key_size)
            ):
                break
            slot = (slot + 1) & (room - 1)
        if slots[slot] < 0:
            slots[slot] = groups
            hashes[groups] = hashed
            key_of[groups] = start
            groups += 1
        group = slots[slot]
        if operation == _UPDATE:
            if tails[group] < 0:
                heads[group] = index
            else:
                links[tails[group]] = index
            tails[group] = index
        else:
            tails[group] = -1
            if operation == _DELETE:
                deletes[group] = index
                inserts[group] = -1
            else:
                inserts[group] = index
    alive = 0
    for group in range(groups):
        if deletes[group] >= 0:
            actions[deletes[group]] = _KEEP
        if inserts[group] >= 0:
            actions[inserts[group]] = _KEEP
        tail = tails[group]
        if tail >= 0 or inserts[group] >= 0:
            alive += 1
        if tail < 0:
            continue
        at = heads[group]
        links[tail] = at
        while at != tail:
            actions[at] = _MERGED
            at = links[at]
        actions[tail] = _KEEP if heads[group] == tail else _FOLD
    return groups, alive


@kernel
def divide_entries(
    buffer: Bytes, starts: Numbers, k0: Any, k1: Any, part_count: int, parts: Numbers
) -> None:
    """The part of each entry, by its key; control entries go to the first."""
    base = start_of(buffer)
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
    """Copy the entries at these starts one behind the other; gives the bytes copied."""
    source, target, at = start_of(buffer), start_of(out), 0
    for index in range(starts.size):
        start, size = starts[index], sizes[index]
        if start < 0 or size < 0 or size > buffer.size - start or size > out.size - at:
            raise IndexError("an entry lies outside the buffer, or out is too short")
        copy_bytes(target + at, source + start, size)
        at += size
    return at


@kernel
def count_entries(buffer: Bytes, starts: Numbers, counts: Numbers) -> None:
    """Add up entries by their operation: `counts` has a place for each byte."""
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
