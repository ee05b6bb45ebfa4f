"""A balance passes only when every record is accounted for; figures tell generations apart."""

from dataclasses import replace

import pytest

from tests.support.balances import DIGEST, make_compaction, make_expiry
from varve.cleaning.removals.removal import (
    Reason,
    Removal,
    RemovalKind,
    SegmentSummary,
    SegmentSummaryBuilder,
    hex_digest,
)
from varve.commit_log.segment_reader import BatchWalk
from varve.disk import MemoryFileSystem
from varve.foundation.clock import ManualClock
from varve.foundation.errors import Unbalanced
from varve.records import Record, build_batch


@pytest.mark.parametrize("balance", [make_compaction(), make_expiry()], ids=lambda b: b.kind)
def test_what_adds_up_passes(balance: Removal) -> None:
    balance.check()


def test_a_record_without_a_reason_is_found_and_the_numbers_are_named() -> None:
    balance = replace(make_compaction(), records={Reason.KEPT: 8, Reason.SUPERSEDED: 3})
    with pytest.raises(Unbalanced, match=r"orders-0.*11 records are accounted for .*hold 12"):
        balance.check()


def test_outputs_hold_exactly_what_was_kept() -> None:
    balance = replace(make_compaction(), outputs=(SegmentSummary(0, 20, 800, 7, 99),))
    with pytest.raises(Unbalanced, match="8 records were to stay, but the outputs hold 7"):
        balance.check()


@pytest.mark.parametrize(
    "changes",
    [
        {"keys_after": "f" * 32},
        {"keys_before": "", "keys_after": ""},
        {"outputs": ()},
        {"outputs": (SegmentSummary(0, 21, 800, 8, 99),)},
        {"inputs": (SegmentSummary(5, 10, 700, 7), SegmentSummary(10, 20, 500, 5))},
        {"inputs": (SegmentSummary(0, 11, 700, 7), SegmentSummary(10, 20, 500, 5))},
        {"records": {Reason.KEPT: 8, Reason.SUPERSEDED: 5, Reason.ABORTED: -1}},
        {"records": {Reason.KEPT: 8, Reason.EXPIRED_TIME: 4}},
        {"bytes": {Reason.KEPT: -1}},
    ],
    ids=str,
)
def test_a_compaction_that_does_not_add_up_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(Unbalanced, match="orders-0: compaction 1 of offsets"):
        replace(make_compaction(), **changes).check()  # type: ignore[arg-type]  # any field


@pytest.mark.parametrize(
    "changes",
    [
        {"inputs": (), "records": {}},
        {"inputs": (), "outputs": (SegmentSummary(0, 0, 0, 0),), "records": {}},
        {"outputs": (SegmentSummary(0, 0, 0, 0),)},
        {"records": {Reason.SUPERSEDED: 7}},
        {"records": {Reason.EXPIRED_TIME: 6}},
    ],
    ids=str,
)
def test_an_expiry_that_does_not_add_up_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(Unbalanced, match="orders-0: expiry 1 of offsets"):
        replace(make_expiry(), **changes).check()  # type: ignore[arg-type]  # any field


def test_a_compaction_may_keep_nothing() -> None:
    balance = replace(
        make_compaction(),
        outputs=(SegmentSummary(0, 0, 0, 0, 0),),
        records={Reason.SUPERSEDED: 12},
        keys_before=hex_digest(),
        keys_after=hex_digest(),
    )
    balance.check()
    assert balance.records_removed == balance.records_before == 12


def test_digests_of_several_segments_add_up_in_any_order() -> None:
    first, second = (2**64 - 1, 5), (3, 2**64 - 5)
    assert hex_digest(first, second) == hex_digest(second, first) == f"{2:016x}{0:016x}"
    assert len(hex_digest()) == len(DIGEST)


def test_figures_of_two_generations_differ() -> None:
    summary = SegmentSummary(0, 10, 700, 7, 77)
    assert summary.is_same(SegmentSummary(0, 10, 700, 7, None))
    assert not summary.is_same(SegmentSummary(0, 10, 700, 7, 78))
    assert not summary.is_same(SegmentSummary(0, 10, 701, 7, 77))
    assert not summary.is_same(SegmentSummary(0, 10, 700, 6, None))


def test_a_figure_covers_all_batches_in_their_order() -> None:
    first = build_batch([Record(b"a", b"1"), Record(b"b", b"2")], base_offset=5)
    second = build_batch([Record(b"c", b"3")], base_offset=9)
    summary = _measure(first + second)
    crc_fields = first[17:21] + second[17:21]
    assert summary == SegmentSummary(5, 10, len(first + second), 3, _crc32c(crc_fields))
    changed = build_batch([Record(b"c", b"4")], base_offset=9)
    assert not summary.is_same(_measure(first + changed))


def test_an_empty_segment_has_a_figure() -> None:
    assert SegmentSummaryBuilder(7).summary() == SegmentSummary(7, 7, 0, 0, 0)


def test_a_kind_reads_as_its_word() -> None:
    assert [str(kind) for kind in RemovalKind] == ["compaction", "erasure", "expiry", "moved"]


def test_an_erasure_accounts_for_what_was_asked_for_alone() -> None:
    erasure = replace(
        make_compaction(),
        kind=RemovalKind.ERASURE,
        records={Reason.KEPT: 8, Reason.ERASED: 4},
        bytes={Reason.KEPT: 600, Reason.ERASED: 219},
    )
    erasure.check()
    assert erasure.records_removed == 4
    assert not erasure.removes_whole_segments
    for reason in (Reason.SUPERSEDED, Reason.TOMBSTONE_EXPIRED, Reason.ABORTED, Reason.EVICTED):
        with pytest.raises(Unbalanced, match="a reason that erasure does not have"):
            replace(erasure, records={Reason.KEPT: 8, Reason.ERASED: 3, reason: 1}).check()
    with pytest.raises(Unbalanced, match="a reason that compaction does not have"):
        replace(erasure, kind=RemovalKind.COMPACTION).check()


def _measure(data: bytes) -> SegmentSummary:
    fs = MemoryFileSystem(ManualClock())
    fs.make_directory("/p")
    builder = SegmentSummaryBuilder(5)
    with fs.open_writable("/p/log") as file:
        file.write_at(0, data)
        for table in BatchWalk(file, start=0, end=len(data), verify_crc=True):
            builder.add(table)
    return builder.summary()


def _crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ 0x82F63B78 * (crc & 1)
    return crc ^ 0xFFFFFFFF
