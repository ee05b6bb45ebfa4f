"""Rebuilds a partition's directory from the remote tier alone, byte for byte.

Layout     built as `<topic>-<partition>.restore-future` in the log directory, which an open passes
           over, and renamed when all of it is on disk; `varve-restored.json` in it records cluster,
           manifest version, commit and the offset that was requested.
           docs/how-to/restore-a-topic.md
Invariant  every file has the size and CRC-32C of the manifest; an existing partition is never
           changed. An empty active segment follows the last one, so that appends do not change the
           restored files.
Crash      a second run keeps the files that are complete, fetches the others and continues.
           Checkpoints are written before the rename: entries of a partition that does not exist yet
           are harmless, old entries of a lost one are not.
Threads    the caller holds the lock of the log directory (`hold_log_directory`); `fetch_all` has
           threads of its own.
"""

import contextlib
import json
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Final

from varve.commit_log import LoadRequest, Log, LogSettings, SegmentFiles, TopicPartition
from varve.commit_log.append_times import AppendSpan, AppendTimes
from varve.commit_log.directory_files import (
    DirectoryMetadata,
    decode_meta_properties,
    decode_topic_id,
    encode_meta_properties,
    encode_partition_metadata,
    random_topic_id,
)
from varve.commit_log.names import (
    CLEANER_OFFSET_FILE,
    HIGH_WATERMARK_FILE,
    INDEX,
    KEYS,
    LEADER_EPOCH_FILE,
    LOCK_FILE,
    LOG,
    LOG_START_OFFSET_FILE,
    META_PROPERTIES_FILE,
    OWN_PREFIX,
    PARTITION_METADATA_FILE,
    RECOVERY_POINT_FILE,
    SNAPSHOT,
    TIME_INDEX,
    TXN_INDEX,
    future_directory_name,
    log_name,
)
from varve.commit_log.offset_checkpoints import decode_offsets, encode_offsets
from varve.commit_log.segment_reader import find_end
from varve.disk import File, FileSystem, make_durable_directory, write_atomically
from varve.foundation.clock import Clock
from varve.foundation.errors import Corrupt, InvalidRequest, NotFound, ObjectNotFound
from varve.kernels.crc import crc32c_of
from varve.object_store import ObjectStore
from varve.tiering.manifest.manifest import Manifest
from varve.tiering.manifest.paths import RemotePath
from varve.tiering.manifest.segment import (
    EPOCHS_PART,
    INDEX_PART,
    KEYS_PART,
    LOG_PART,
    SNAPSHOT_PART,
    TIME_INDEX_PART,
    TXN_INDEX_PART,
    RemoteSegment,
)
from varve.tiering.manifest.store import ManifestStore
from varve.tiering.segment_upload import CHUNK_BYTES, crc32c_of_file

Advance = Callable[[int], None]
"""Called with the number of bytes processed since the last call."""


@dataclass(frozen=True, slots=True)
class RestoredFile:
    """A file to be fetched from an object."""

    name: str
    key: str
    size: int
    crc32c: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetcher:
    """Fetches the files of a directory, `workers` at a time."""

    objects: ObjectStore
    fs: FileSystem
    workers: int
    advance: Advance
    is_stopped: threading.Event = field(default_factory=threading.Event)

    def fetch_all(self, directory: str, files: Sequence[RestoredFile]) -> tuple[int, int]:
        """The bytes fetched, and those of files that were there already.

        Every file is synced; their names are not. Raises Corrupt when an object is missing or not
        what the manifest says.
        """

        def reuse_or_fetch(file: RestoredFile) -> tuple[int, int]:
            if self._is_complete(directory, file):
                self.advance(file.size)
                return 0, file.size
            self._fetch(directory, file)
            return file.size, 0

        if self.workers == 1:
            counts = [reuse_or_fetch(file) for file in files]
        else:
            with ThreadPoolExecutor(self.workers, thread_name_prefix="varve-restore") as pool:
                try:
                    counts = list(pool.map(reuse_or_fetch, files))
                except BaseException:
                    self.is_stopped.set()
                    pool.shutdown(cancel_futures=True)
                    raise
        return sum(count for count, _ in counts), sum(count for _, count in counts)

    def _is_complete(self, directory: str, restored: RestoredFile) -> bool:
        path = f"{directory}/{restored.name}"
        if not self.fs.exists(path) or self.fs.info(path).size != restored.size:
            return False
        with self.fs.open(path) as file:
            if crc32c_of_file(file, restored.size) != restored.crc32c:
                return False
            # A run that was interrupted before its sync may have written it.
            file.sync()
        return True

    def _fetch(self, directory: str, restored: RestoredFile) -> None:
        with self.fs.open_writable(f"{directory}/{restored.name}") as file:
            if file.size():
                file.truncate(0)
            try:
                size, crc = self._copy(restored, file)
            except ObjectNotFound as error:
                raise self._corrupt(restored, "does not exist") from error
            if size != restored.size:
                more = "more" if size > restored.size else f"{size}"
                raise self._corrupt(restored, f"has {more} bytes instead of {restored.size}")
            if crc != restored.crc32c:
                raise self._corrupt(
                    restored, f"has CRC-32C {crc:08x} instead of {restored.crc32c:08x}"
                )
            file.sync()

    def _copy(self, restored: RestoredFile, file: File) -> tuple[int, int]:
        position = crc = 0
        # Request one extra byte to detect an object that is too long.
        while position <= restored.size and not self.is_stopped.is_set():
            end = min(position + CHUNK_BYTES, restored.size + 1)
            chunk = self.objects.get_range(restored.key, position, end)
            if not chunk:
                break
            file.write_at(position, chunk)
            crc = crc32c_of(chunk, crc)
            position += len(chunk)
            self.advance(len(chunk))
        return position, crc

    def _corrupt(self, restored: RestoredFile, fault: str) -> Corrupt:
        return Corrupt(
            f"{self.objects.name}: {restored.key} {fault}, by its manifest: `varve tier fsck` "
            "shows other damage. If a job changed the topic meanwhile, restore again; else put the "
            "object back, or restore up to the segment before it with --to"
        )


RESTORED_FILE: Final = f"{OWN_PREFIX}restored.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreReport:
    """The result of a restore.

    `end_offset` is exclusive. `reused_bytes` were fetched by an interrupted run; with `was_there`
    an earlier run had completed, and nothing was done.
    """

    path: RemotePath
    directory: str
    manifest_version: int
    manifest_ms: int
    segment_count: int
    log_start_offset: int
    end_offset: int
    fetched_bytes: int = 0
    reused_bytes: int = 0
    was_there: bool = False


_NODE_ID: Final = 1
_KINDS: Final = {
    LOG_PART: LOG,
    INDEX_PART: INDEX,
    TIME_INDEX_PART: TIME_INDEX,
    TXN_INDEX_PART: TXN_INDEX,
    KEYS_PART: KEYS,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RestorePlan:
    """The segments to restore, without a gap; `until_offset` may lie within the last one."""

    path: RemotePath
    manifest: Manifest
    segments: tuple[RemoteSegment, ...]
    until_offset: int | None = None

    @property
    def is_cut(self) -> bool:
        return self.until_offset is not None and self.until_offset <= self.segments[-1].end_offset

    @property
    def end_offset(self) -> int:
        return self.segments[-1].end_offset + 1

    @property
    def log_start_offset(self) -> int:
        return max(self.manifest.log_start_offset, self.segments[0].base_offset)

    @property
    def stored_bytes(self) -> int:
        return sum(segment.stored_bytes for segment in self.segments)


def plan_restore(
    manifests: ManifestStore, manifest: Manifest, *, until_offset: int | None = None
) -> RestorePlan:
    """Plans the restore of a manifest version, with `until_offset` only of earlier records.

    Raises NotFound when there is nothing to restore, and Corrupt for a gap.
    """
    segments: list[RemoteSegment] = []
    for segment in manifests.readable(manifest, from_offset=manifest.log_start_offset):
        if until_offset is not None and segment.base_offset >= until_offset:
            break
        if segments and segment.base_offset != segments[-1].end_offset + 1:
            raise Corrupt(
                f"{manifest.path}: manifest version {manifest.version} has no readable segment for "
                f"the offsets {segments[-1].end_offset + 1} to {segment.base_offset - 1}: restore "
                f"with --to {segments[-1].end_offset + 1}, or an older version"
            )
        segments.append(segment)
    if not segments or (until_offset is not None and until_offset <= manifest.log_start_offset):
        before = "" if until_offset is None else f" before offset {until_offset}"
        raise NotFound(
            f"{manifest.path}: manifest version {manifest.version} has no record{before} to "
            f"restore; its log starts at {manifest.log_start_offset}"
        )
    return RestorePlan(
        path=manifest.path, manifest=manifest, segments=tuple(segments), until_offset=until_offset
    )


@contextlib.contextmanager
def hold_log_directory(fs: FileSystem, path: str, *, cluster: str) -> Iterator[None]:
    """Holds the lock of a log directory; creates a missing one with this cluster id.

    Raises Locked when a process has it open.
    """
    make_durable_directory(fs, path)
    lock = fs.lock(f"{path}/{LOCK_FILE}")
    try:
        if not fs.exists(f"{path}/{META_PROPERTIES_FILE}"):
            metadata = DirectoryMetadata(
                cluster_id=cluster,
                node_id=_NODE_ID,
                directory_id=random_topic_id(random.SystemRandom()),
            )
            write_atomically(fs, f"{path}/{META_PROPERTIES_FILE}", encode_meta_properties(metadata))
        yield
    finally:
        lock.release()


def read_cluster(fs: FileSystem, path: str) -> str | None:
    """The cluster id of a log directory; None without one."""
    file = f"{path}/{META_PROPERTIES_FILE}"
    if not fs.exists(file):
        return None
    return decode_meta_properties(fs.read(file), where=file).cluster_id


def restore_partition(
    objects: ObjectStore,
    plan: RestorePlan,
    fs: FileSystem,
    log_directory: str,
    *,
    clock: Clock,
    workers: int = 1,
    advance: Advance = lambda size: None,
) -> RestoreReport:
    """Restores a partition's directory into a log directory whose lock the caller holds.

    Raises InvalidRequest when the partition is there already, unless an earlier restore of the same
    state made it, and Corrupt when an object is not what the manifest says.
    """
    return _Restore(plan, fs, log_directory, clock).run(
        Fetcher(objects=objects, fs=fs, workers=workers, advance=advance)
    )


def _encode_mark(plan: RestorePlan) -> bytes:
    """Identifies the restored state of the remote tier; equal marks mean equal files."""
    mark = {
        "cluster": plan.manifest.cluster,
        "topic_id": plan.manifest.topic_id,
        "version": plan.manifest.version,
        "commit": plan.manifest.commit_id,
        "until_offset": plan.until_offset,
    }
    return (json.dumps(mark) + "\n").encode()


class _Restore:
    """One restore of one partition; the steps follow each other in `run`."""

    def __init__(self, plan: RestorePlan, fs: FileSystem, log_directory: str, clock: Clock) -> None:
        self._plan = plan
        self._fs = fs
        self._log_directory = log_directory
        self._clock = clock
        self._partition = TopicPartition(plan.path.topic, plan.path.partition)
        self._target = f"{log_directory}/{self._partition}"
        self._future = f"{log_directory}/{future_directory_name(self._partition, 'restore')}"
        self._mark = _encode_mark(plan)

    def run(self, fetcher: Fetcher) -> RestoreReport:
        topic_id = decode_topic_id(self._plan.path.topic_id, f"{self._plan.path}")
        files = list_files(self._plan)
        if self._is_done():
            # The run that restored it may have ended before it synced the rename.
            self._fs.sync_directory(self._log_directory)
            offsets = self._read_offsets(RECOVERY_POINT_FILE)
            end_offset = offsets.get(self._partition, self._plan.end_offset)
            return replace(self._report(end_offset), was_there=True)
        self._fs.make_directory(self._future)
        self._fs.sync_directory(self._log_directory)
        # Leftovers of an earlier run are not part of this plan.
        for name in set(self._fs.names(self._future)) - {file.name for file in files}:
            self._fs.remove(f"{self._future}/{name}")
        fetched, reused = fetcher.fetch_all(self._future, files)
        self._write(PARTITION_METADATA_FILE, encode_partition_metadata(topic_id))
        self._write_append_times()
        end_offset = self._truncate() if self._plan.is_cut else self._create_active_segment()
        self._write(RESTORED_FILE, self._mark)
        self._fs.sync_directory(self._future)
        self._write_checkpoints(end_offset)
        if self._fs.exists(self._target):
            self._fs.remove_tree(self._target)
        self._fs.rename(self._future, self._target)
        self._fs.sync_directory(self._log_directory)
        return replace(self._report(end_offset), fetched_bytes=fetched, reused_bytes=reused)

    def _is_done(self) -> bool:
        """Whether an earlier run completed this restore; raises if the target has other content."""
        if not self._fs.exists(self._target) or not self._fs.names(self._target):
            return False
        path = f"{self._target}/{RESTORED_FILE}"
        stored = self._fs.read(path) if self._fs.exists(path) else b""
        if stored == self._mark:
            return True
        was = f"was restored from another state ({stored.decode(errors='replace').strip()})"
        raise InvalidRequest(
            f"{self._target} is there and {was if stored else 'not empty'}: restore into another "
            "log directory, or move it away first"
        )

    def _read_offsets(self, name: str) -> dict[TopicPartition, int]:
        """A checkpoint of the log directory; empty without a file."""
        path = f"{self._log_directory}/{name}"
        return decode_offsets(self._fs.read(path), where=path) if self._fs.exists(path) else {}

    def _write(self, name: str, data: bytes) -> None:
        with self._fs.open_writable(f"{self._future}/{name}") as file:
            if data:
                file.write_at(0, data)
            file.sync()

    def _write_append_times(self) -> None:
        times = AppendTimes(self._fs, self._future)
        for segment in self._plan.segments:
            times.write(segment.base_offset, AppendSpan(*segment.append_ms))
        times.sync()

    def _create_active_segment(self) -> int:
        """Creates the empty active segment for the next append."""
        for kind in (LOG, INDEX, TIME_INDEX):
            self._write(log_name(self._plan.end_offset, kind), b"")
        return self._plan.end_offset

    def _truncate(self) -> int:
        """Truncates the last segment after the last batch that ends before `until_offset`."""
        assert self._plan.until_offset is not None
        log = Log.open(
            LoadRequest(
                files=SegmentFiles(self._fs),
                directory=self._future,
                topic_partition=self._partition,
                settings=LogSettings(),
                clock=self._clock,
                random=random.Random(0),
                clean=True,
                recovery_point=self._plan.end_offset,
                log_start_offset=self._plan.log_start_offset,
            )
        )
        try:
            log.truncate_to(self._plan.until_offset)
            # If the offset lies within a batch or a gap, end the log at the end of its records.
            last = list(log.view)[-1]
            log.truncate_to(find_end(last, size=last.size)[0])
            log.delete_expired_files(self._clock.now_ms() + log.settings.file_delete_delay_ms)
            end_offset = log.end_offset
            log.close()
        except BaseException:
            log.abandon()
            raise
        return end_offset

    def _write_checkpoints(self, end_offset: int) -> None:
        """Replaces the partition's entries in the checkpoints of the log directory."""
        start = self._plan.log_start_offset
        is_within = start > self._plan.segments[0].base_offset
        for name, offset in (
            (RECOVERY_POINT_FILE, end_offset),
            (HIGH_WATERMARK_FILE, end_offset),
            (LOG_START_OFFSET_FILE, start if is_within else None),
            (CLEANER_OFFSET_FILE, None),
        ):
            before = self._read_offsets(name)
            changed = {**before, self._partition: offset or 0}
            if offset is None:
                del changed[self._partition]
            if changed != before:
                path = f"{self._log_directory}/{name}"
                write_atomically(self._fs, path, encode_offsets(changed))

    def _report(self, end_offset: int) -> RestoreReport:
        return RestoreReport(
            path=self._plan.path,
            directory=self._target,
            manifest_version=self._plan.manifest.version,
            manifest_ms=self._plan.manifest.at_ms,
            segment_count=len(self._plan.segments),
            log_start_offset=self._plan.log_start_offset,
            end_offset=end_offset,
        )


def list_files(plan: RestorePlan) -> list[RestoredFile]:
    """The files to fetch; of the leader epoch histories only the newest."""
    files = []
    for segment in plan.segments:
        _check_parts(plan.path, segment)
        is_last = segment is plan.segments[-1]
        for part in segment.parts:
            name = _file_name(segment, part.name, is_last=is_last)
            if name is not None:
                key = plan.path.part_key(segment, part.name)
                files.append(RestoredFile(name, key, part.size, part.crc32c))
    return files


def _file_name(segment: RemoteSegment, part: str, *, is_last: bool) -> str | None:
    if part == EPOCHS_PART:
        return LEADER_EPOCH_FILE if is_last else None
    if part == SNAPSHOT_PART:
        return log_name(segment.end_offset + 1, SNAPSHOT)
    return log_name(segment.base_offset, _KINDS[part]) if part in _KINDS else None


def _check_parts(path: RemotePath, segment: RemoteSegment) -> None:
    for name in (LOG_PART, EPOCHS_PART):
        if segment.find_part(name) is None:
            raise Corrupt(
                f"{path}: {segment} has no part {name!r} in the manifest, without which it cannot "
                "be restored: take an older version"
            )
