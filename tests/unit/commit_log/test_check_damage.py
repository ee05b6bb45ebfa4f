"""Every kind of damage is named by its rule, and a repair leaves nothing to name."""

import random
import struct
import zlib
from collections.abc import Callable

import numpy as np
import pytest

from tests.check_builder import ORDERS, ROOT, build_store, flip, open_directory, write_file
from tests.support.check_open_log import check_log
from tests.support.directory_check import check_log_directory
from varve.commit_log.check import Finding, Severity, hold_lock, inspect_directory
from varve.commit_log.check.partition import PartitionContext
from varve.commit_log.check.repair import Quarantine, RepairReport, RepairTools, repair_directory
from varve.commit_log.names import CLEAN_SHUTDOWN_FILE
from varve.disk import FileSystem
from varve.foundation.clock import ManualClock
from varve.foundation.errors import Locked
from varve.kernels.crc import crc32c
from varve.records import Codec, Record, build_batch, end_transaction_marker

PARTITION = f"{ROOT}/orders-0"
KEPT = "/store/kept"
FIRST = f"{PARTITION}/00000000000000000000"
SECOND = f"{PARTITION}/00000000000000000029"
LAST = f"{PARTITION}/00000000000000000083"

Damage = Callable[[FileSystem], None]


def _cut(path: str, size: int) -> Damage:
    def damage(fs: FileSystem) -> None:
        with fs.open_writable(path) as file:
            file.truncate(file.size() - size)

    return damage


def _append(path: str, data: bytes) -> Damage:
    def damage(fs: FileSystem) -> None:
        write_file(fs, path, fs.read(path) + data)

    return damage


def _replace(path: str, data: bytes) -> Damage:
    return lambda fs: write_file(fs, path, data)


def _flip(path: str, position: int) -> Damage:
    return lambda fs: flip(fs, path, position)


def _remove(path: str) -> Damage:
    return lambda fs: fs.remove(path)


def _copy(source: str, target: str) -> Damage:
    return lambda fs: write_file(fs, target, fs.read(source))


def _swap_entries(path: str, entry_size: int) -> Damage:
    def damage(fs: FileSystem) -> None:
        data = fs.read(path)
        first, second = data[:entry_size], data[entry_size : 2 * entry_size]
        write_file(fs, path, second + first + data[2 * entry_size :])

    return damage


def _patch(path: str, position: int, layout: str, change: int) -> Damage:
    def damage(fs: FileSystem) -> None:
        data = bytearray(fs.read(path))
        (value,) = struct.unpack_from(layout, data, position)
        struct.pack_into(layout, data, position, value + change)
        write_file(fs, path, bytes(data))

    return damage


def _repeat_first_batch(fs: FileSystem) -> None:
    data = fs.read(f"{LAST}.log")
    size = 12 + int.from_bytes(data[8:12], "big")
    write_file(fs, f"{LAST}.log", data + data[:size])


def _append_bad_marker(fs: FileSystem) -> None:
    marker = bytearray(
        end_transaction_marker(
            committed=True,
            producer_id=9,
            producer_epoch=1,
            coordinator_epoch=0,
            timestamp=1,
            base_offset=104,
            leader_epoch=3,
        )
    )
    marker[66:68] = b"\xff\xff"  # the version in the control record's key
    checksum = crc32c(np.frombuffer(marker, np.uint8), 21, len(marker))
    struct.pack_into(">I", marker, 17, checksum)
    _append(f"{LAST}.log", bytes(marker))(fs)


DATA_DAMAGES = {
    "marker that cannot be read": (_append_bad_marker, "control-batch"),
    "flipped bit in a record": (_flip(f"{SECOND}.log", 100), "batch-crc"),
    "flipped bit in the last segment": (_flip(f"{LAST}.log", 100), "batch-crc"),
    "flipped bit in the magic byte": (_flip(f"{SECOND}.log", 16), "batch-magic"),
    "length one too short": (_patch(f"{SECOND}.log", 11, "B", -1), "batch-crc"),
    "cut tail": (_cut(f"{LAST}.log", 7), "torn-tail"),
    "cut tail in the middle": (_cut(f"{SECOND}.log", 7), "torn-tail"),
    "garbage behind": (_append(f"{LAST}.log", b"\xff" * 40), "batch-size"),
    "zeros behind": (_append(f"{LAST}.log", bytes(300)), "zero-tail"),
    "an old batch again": (_repeat_first_batch, "offsets-ascend"),
}

FILE_DAMAGES = {
    "missing index": (_remove(f"{SECOND}.index"), "missing-index"),
    "missing time index": (_remove(f"{SECOND}.timeindex"), "missing-timeindex"),
    "missing transaction index": (_remove(f"{FIRST}.txnindex"), "missing-txnindex"),
    "orphan index": (_copy(f"{SECOND}.index", f"{PARTITION}/{7:020d}.index"), "orphan-index"),
    "orphan key index": (_replace(f"{PARTITION}/{7:020d}.keys", b"sidecar"), "orphan-index"),
    "key index in the making": (_replace(f"{SECOND}.keys.run", b"half"), "leftover-tmp"),
    "torn index": (_cut(f"{SECOND}.index", 3), "index-length"),
    "torn time index": (_cut(f"{SECOND}.timeindex", 3), "timeindex-length"),
    "torn transaction index": (_cut(f"{FIRST}.txnindex", 3), "txnindex-corrupt"),
    "swapped index entries": (_swap_entries(f"{SECOND}.index", 8), "index-order"),
    "swapped time entries": (_swap_entries(f"{SECOND}.timeindex", 12), "timeindex-order"),
    "index position within a batch": (_patch(f"{SECOND}.index", 4, ">i", 1), "index-position"),
    "index offset too low": (_patch(f"{SECOND}.index", 0, ">i", -1), "index-offset"),
    "time entry of another time": (
        _patch(f"{SECOND}.timeindex", 0, ">q", -1),
        "timeindex-timestamp",
    ),
    "time entry at no batch's end": (
        _patch(f"{SECOND}.timeindex", 8, ">i", -1),
        "timeindex-offset",
    ),
    "time index short of its end": (_cut(f"{SECOND}.timeindex", 12), "timeindex-lags"),
    "zeros behind an index": (_append(f"{SECOND}.index", bytes(80)), "index-untrimmed"),
    "zeros behind a time index": (
        _append(f"{SECOND}.timeindex", bytes(120)),
        "timeindex-untrimmed",
    ),
    "aborted transaction of another": (_patch(f"{FIRST}.txnindex", 2, ">q", 1), "txnindex-untrue"),
    "flipped bit in a snapshot": (_flip(f"{SECOND}.snapshot", 20), "snapshot-corrupt"),
    "empty snapshot file": (_replace(f"{SECOND}.snapshot", b""), "snapshot-corrupt"),
    "snapshot of an older state": (
        _copy(f"{SECOND}.snapshot", f"{LAST}.snapshot"),
        "snapshot-untrue",
    ),
    "snapshot of a newer state": (
        _copy(f"{LAST}.snapshot", f"{SECOND}.snapshot"),
        "snapshot-untrue",
    ),
    "snapshot that knows nobody": (
        _replace(f"{SECOND}.snapshot", bytes.fromhex("000148674bc700000000")),
        "snapshot-incomplete",
    ),
    "snapshot beyond the end": (
        _copy(f"{SECOND}.snapshot", f"{PARTITION}/{9000:020d}.snapshot"),
        "snapshot-beyond-end",
    ),
    "snapshot of no segment": (
        _copy(f"{SECOND}.snapshot", f"{PARTITION}/{30:020d}.snapshot"),
        "snapshot-stray",
    ),
    "epochs out of order": (
        _replace(f"{PARTITION}/leader-epoch-checkpoint", b"0\n2\n3 50\n0 0\n"),
        "epochs-order",
    ),
    "epochs that never were": (
        _replace(f"{PARTITION}/leader-epoch-checkpoint", b"0\n2\n0 0\n8 20\n"),
        "epochs-untrue",
    ),
    "epochs that begin late": (
        _replace(f"{PARTITION}/leader-epoch-checkpoint", b"0\n1\n3 52\n"),
        "epochs-incomplete",
    ),
    "epochs beyond the end": (
        lambda fs: write_file(
            fs,
            f"{PARTITION}/leader-epoch-checkpoint",
            fs.read(f"{PARTITION}/leader-epoch-checkpoint").replace(b"0\n2\n", b"0\n3\n")
            + b"9 9000\n",
        ),
        "epochs-beyond-end",
    ),
    "epochs miscounted": (
        _replace(f"{PARTITION}/leader-epoch-checkpoint", b"0\n5\n0 0\n"),
        "epochs-corrupt",
    ),
    "epochs missing": (_remove(f"{PARTITION}/leader-epoch-checkpoint"), "missing-epochs"),
    "deleted file": (
        _copy(f"{SECOND}.log", f"{PARTITION}/{5:020d}.log.deleted"),
        "leftover-deleted",
    ),
    "cleaning cut short": (_copy(f"{SECOND}.log", f"{SECOND}.log.cleaned"), "leftover-cleaned"),
    "swap cut short": (_copy(f"{SECOND}.index", f"{SECOND}.index.swap"), "leftover-swap"),
    "temporary file": (_replace(f"{PARTITION}/partition.metadata.tmp", b"x"), "leftover-tmp"),
    "partition metadata torn": (
        _replace(f"{PARTITION}/partition.metadata", b"version: 0\ntopic"),
        "partition-metadata-corrupt",
    ),
    "partition metadata missing": (
        _remove(f"{PARTITION}/partition.metadata"),
        "missing-partition-metadata",
    ),
    "meta.properties torn": (
        _replace(f"{ROOT}/meta.properties", b"version=1\ncluster.id=abc\nno"),
        "meta-properties-corrupt",
    ),
    "meta.properties of garbage": (
        _replace(f"{ROOT}/meta.properties", b"version=\\uzz"),
        "meta-properties-corrupt",
    ),
    "wrong checkpoint count": (
        _replace(f"{ROOT}/recovery-point-offset-checkpoint", b"0\n7\norders 0 104\n"),
        "checkpoint-corrupt",
    ),
    "unreadable log starts": (
        _replace(f"{ROOT}/log-start-offset-checkpoint", b"0\n1\norders 0 x\n"),
        "checkpoint-corrupt",
    ),
    "negative high watermark": (
        _replace(f"{ROOT}/replication-offset-checkpoint", b"0\n1\norders 0 -4\n"),
        "checkpoint-range",
    ),
    "recovery point beyond the end": (
        _replace(f"{ROOT}/recovery-point-offset-checkpoint", b"0\n1\norders 0 900\n"),
        "recovery-point-beyond-end",
    ),
    "log start beyond the end": (
        _replace(f"{ROOT}/log-start-offset-checkpoint", b"0\n1\norders 0 900\n"),
        "log-start-beyond-end",
    ),
    "high watermark beyond the end": (
        _replace(f"{ROOT}/replication-offset-checkpoint", b"0\n1\norders 0 900\n"),
        "high-watermark-beyond-end",
    ),
}


def _rules(findings: list[Finding]) -> set[str]:
    return {finding.rule for finding in findings}


def _repair(
    fs: FileSystem, clock: ManualClock, *, allow_data_loss: bool
) -> tuple[RepairReport, list[Finding]]:
    context = PartitionContext(now_ms=clock.now_ms(), deep=True)
    tools = RepairTools(
        fs=fs,
        clock=clock,
        random=random.Random(3),
        quarantine=Quarantine(fs, KEPT),
        allow_data_loss=allow_data_loss,
    )
    with hold_lock(fs, ROOT):
        report = repair_directory(inspect_directory(fs, ROOT, context), tools)
        return report, inspect_directory(fs, ROOT, context).findings


def _contents(fs: FileSystem) -> dict[str, bytes]:
    paths = [f"{ROOT}/{name}" for name in fs.names(ROOT)]
    paths += [f"{PARTITION}/{name}" for name in fs.names(PARTITION)]
    return {path: fs.read(path) for path in paths if not fs.info(path).is_directory}


def test_a_store_closed_in_good_order_has_no_findings() -> None:
    fs, clock = build_store(partitions=2)
    assert check_log_directory(fs, ROOT, deep=True, now_ms=clock.now_ms()) == []


def test_a_store_that_was_killed_has_notes_only() -> None:
    fs, clock = build_store(is_closed=False)
    findings = check_log_directory(fs, ROOT, deep=True, now_ms=clock.now_ms())
    assert {finding.severity for finding in findings} == {Severity.NOTE}


@pytest.mark.parametrize("name", FILE_DAMAGES)
def test_a_damaged_file_is_named_and_mended_without_loss(name: str) -> None:
    damage, rule = FILE_DAMAGES[name]
    fs, clock = build_store(partitions=2)
    data = {path: bytes_ for path, bytes_ in _contents(fs).items() if path.endswith(".log")}
    damage(fs)
    before = _contents(fs)
    findings = check_log_directory(fs, ROOT, deep=True, now_ms=clock.now_ms())
    assert rule in _rules(findings)
    assert _contents(fs) == before, "a check must not write"
    report, after = _repair(fs, clock, allow_data_loss=False)
    assert report.refused == []
    assert after == []
    assert {p: b for p, b in _contents(fs).items() if p.endswith(".log")} == data
    _reopen(fs, clock)


@pytest.mark.parametrize("name", DATA_DAMAGES)
def test_damaged_data_is_named_and_cut_only_when_allowed(name: str) -> None:
    damage, rule = DATA_DAMAGES[name]
    fs, clock = build_store()
    damage(fs)
    before = _contents(fs)
    findings = check_log_directory(fs, ROOT, deep=True, now_ms=clock.now_ms())
    assert rule in _rules(findings)
    assert any(finding.severity is Severity.ERROR for finding in findings)
    if rule != "zero-tail":
        report, after = _repair(fs, clock, allow_data_loss=False)
        assert report.done == []
        assert "--allow-data-loss" in report.refused[0]
        assert _rules(after) == _rules(findings)
        assert _contents(fs) == before
    report, after = _repair(fs, clock, allow_data_loss=rule != "zero-tail")
    assert report.refused == []
    assert after == []
    if rule != "zero-tail":
        _check_kept(fs, before)
    _reopen(fs, clock)


def _check_kept(fs: FileSystem, before: dict[str, bytes]) -> None:
    """What the data files lost lies in the quarantine, byte for byte."""
    kept = {name: fs.read(f"{KEPT}/orders-0/{name}") for name in fs.names(f"{KEPT}/orders-0")}
    for path, data in before.items():
        if not path.endswith(".log"):
            continue
        left = fs.read(path) if fs.exists(path) else b""
        assert data.startswith(left)
        if left != data:
            name = path.rpartition("/")[2]
            assert kept[f"{name}.cut-{len(left)}"] == data[len(left) :]


def _reopen(fs: FileSystem, clock: ManualClock) -> None:
    directory = open_directory(fs, clock)
    assert directory.unreadable == {}
    for log in directory.logs.values():
        assert check_log(log) == []
    directory.close()


def test_every_damaged_batch_is_named() -> None:
    fs, clock = build_store()
    data = fs.read(f"{SECOND}.log")
    position, positions = 0, []
    while position < len(data):
        positions.append(position)
        flip(fs, f"{SECOND}.log", position + 30)
        position += 12 + int.from_bytes(data[position + 8 : position + 12], "big")
    findings = check_log_directory(fs, ROOT, now_ms=clock.now_ms())
    named = [finding.position for finding in findings if finding.rule == "batch-crc"]
    assert sorted(position for position in named if position is not None) == positions[:16]


def test_a_torn_tail_after_a_crash_is_a_warning() -> None:
    fs, clock = build_store(is_closed=False)
    _cut(f"{LAST}.log", 7)(fs)
    findings = check_log_directory(fs, ROOT, now_ms=clock.now_ms())
    assert [f.severity for f in findings if f.rule == "torn-tail"] == [Severity.WARNING]


def test_a_torn_tail_below_the_recovery_point_is_an_error() -> None:
    fs, clock = build_store()
    fs.remove(f"{ROOT}/{CLEAN_SHUTDOWN_FILE}")
    _cut(f"{LAST}.log", 7)(fs)
    findings = check_log_directory(fs, ROOT, now_ms=clock.now_ms())
    assert [f.severity for f in findings if f.rule == "torn-tail"] == [Severity.ERROR]
    assert "recovery-point-beyond-end" in _rules(findings)


def test_records_that_break_their_format_are_found_by_a_deep_check_only() -> None:
    fs, clock = build_store()
    batch = bytearray(build_batch([Record(b"k", b"v" * 99)], base_offset=104, codec=Codec.GZIP))
    batch[-20] ^= 0xFF
    struct.pack_into(">I", batch, 17, crc32c(np.frombuffer(batch, np.uint8), 21, len(batch)))
    _append(f"{LAST}.log", bytes(batch))(fs)
    assert "records-corrupt" not in _rules(check_log_directory(fs, ROOT, now_ms=clock.now_ms()))
    deep = check_log_directory(fs, ROOT, now_ms=clock.now_ms(), deep=True)
    assert "records-corrupt" in _rules(deep)


def test_a_directory_in_use_is_refused_unless_told_otherwise() -> None:
    fs, clock = build_store()
    directory = open_directory(fs, clock)
    with pytest.raises(Locked):
        check_log_directory(fs, ROOT)
    assert all(f.severity is not Severity.ERROR for f in check_log_directory(fs, ROOT, lock=False))
    directory.close()


def test_a_check_leaves_no_lock_file_behind() -> None:
    fs, clock = build_store()
    fs.remove(f"{ROOT}/.lock")
    check_log_directory(fs, ROOT, now_ms=clock.now_ms())
    assert not fs.exists(f"{ROOT}/.lock")


def test_directories_that_are_no_partitions_are_named() -> None:
    fs, clock = build_store()
    fs.make_directory(f"{ROOT}/lost+found")
    fs.make_directory(f"{ROOT}/old-0.0123456789abcdef0123456789abcdef-delete")
    findings = check_log_directory(fs, ROOT, now_ms=clock.now_ms())
    assert _rules(findings) == {"foreign-directory", "delete-partition"}
    assert str(ORDERS) == "orders-0"


def test_epochs_are_rebuilt_from_what_a_cut_leaves() -> None:
    fs, clock = build_store()
    flip(fs, f"{SECOND}.log", 30)
    # Untrue for the segment that stays, too.
    write_file(fs, f"{PARTITION}/leader-epoch-checkpoint", b"0\n2\n0 0\n2 20\n")
    report, after = _repair(fs, clock, allow_data_loss=True)
    assert report.refused == []
    assert after == []
    assert fs.read(f"{PARTITION}/leader-epoch-checkpoint") == b"0\n1\n0 0\n"


def test_a_message_of_an_old_format_is_named_and_left_alone() -> None:
    fs, clock = build_store()
    body = struct.pack(">bbqii", 1, 0, 1000, -1, -1)
    message = struct.pack(">qiI", 104, len(body) + 4, zlib.crc32(body)) + body
    _append(f"{LAST}.log", message + bytes(40))(fs)
    before = _contents(fs)
    findings = check_log_directory(fs, ROOT, now_ms=clock.now_ms())
    assert [f.repair for f in findings if f.rule == "old-format"] == [None]
    report, _ = _repair(fs, clock, allow_data_loss=True)
    assert report.refused or report.done == []
    assert fs.read(f"{LAST}.log") == before[f"{LAST}.log"]


def test_an_offset_far_beyond_its_segment_is_named_and_left_to_a_person() -> None:
    fs, clock = build_store()
    _patch(f"{SECOND}.log", 0, ">q", 1 << 42)(fs)
    before = _contents(fs)
    findings = check_log_directory(fs, ROOT, now_ms=clock.now_ms())
    assert "offset-overflow" in _rules(findings)
    report, _ = _repair(fs, clock, allow_data_loss=True)
    assert "beyond the range of their segment" in report.refused[0]
    assert {p: b for p, b in _contents(fs).items() if p.endswith(".log")} == {
        p: b for p, b in before.items() if p.endswith(".log")
    }


def test_key_indexes_and_our_own_files_are_known() -> None:
    fs, clock = build_store()
    write_file(fs, f"{FIRST}.keys", b"sidecar")
    assert fs.exists(f"{PARTITION}/varve-append-times")
    write_file(fs, f"{PARTITION}/varve-evidence.jsonl", b"{}")
    assert check_log_directory(fs, ROOT, deep=True, now_ms=clock.now_ms()) == []
