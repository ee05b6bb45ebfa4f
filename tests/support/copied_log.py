"""A real log whose closed segments lie in an object store, and what a restore of it must give."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from tests.support.log_bench import DIRECTORY, NOW_MS, Bench, make_batch, make_marker
from tests.support.remote_builder import open_manifest
from varve.commit_log import AppendOrigin, Log
from varve.commit_log.leader_epochs import LeaderEpochs
from varve.commit_log.names import LEADER_EPOCH_FILE, SNAPSHOT, log_name
from varve.disk.memory import MemoryFileSystem
from varve.foundation.clock import ManualClock
from varve.kernels.crc import crc32c_of
from varve.object_store import ObjectStore
from varve.tiering.manifest.paths import RemotePath
from varve.tiering.manifest.segment import ObjectPart, RemoteSegment, SegmentState, restrict_epochs
from varve.tiering.manifest.store import ObjectManifestStore

HOME = RemotePath("prod", "topic", "q1Sh9e5zQ8G5YyvbVnCk_w", 0)
_FILES = {"log": ".log", "index": ".index", "timeindex": ".timeindex", "txnindex": ".txnindex"}


def open_manifests(objects: ObjectStore, seed: int = 0) -> ObjectManifestStore:
    """A writer or reader of the partition's manifest; each needs a seed of its own."""
    return open_manifest(objects, seed, path=HOME)


@dataclass
class CopiedLog:
    """The log, and the files that the cold tier holds of it by name."""

    bench: Bench
    files: dict[str, bytes]
    segments: list[RemoteSegment]

    @property
    def log(self) -> Log:
        return self.bench.log


def make_log(segment_count: int = 4) -> Bench:
    """A log of closed segments with epochs, a producer and transactions, one of them aborted."""
    clock = ManualClock(NOW_MS)
    bench = Bench(MemoryFileSystem(clock), clock)
    bench.open()
    for number in range(segment_count + 1):
        epoch = number // 2
        for batch in range(3):
            bench.log.append(
                make_batch(2, key=b"%d" % batch, value=b"%d" % number, time=number),
                leader_epoch=epoch,
            )
        if number == 1:
            data = make_batch(
                1, producer_id=1, producer_epoch=0, base_sequence=0, transactional=True
            )
            bench.log.append(data, leader_epoch=epoch)
            bench.log.append(make_marker(committed=False), origin=AppendOrigin.COORDINATOR)
        clock.advance(1_000)
        if number < segment_count:
            bench.log.roll()
    bench.log.flush()
    return bench


def copy_log(objects: ObjectStore, bench: Bench, *, seed: int = 1) -> CopiedLog:
    """Announces, uploads and finishes every closed segment, as the copier does."""
    log, manifests = bench.log, open_manifests(objects, seed)
    segments = list(log.view)
    remote = CopiedLog(bench, {}, [])
    for segment, following in pairwise(segments):
        next_offset = following.base_offset
        data = read_parts(bench, segment.base_offset, next_offset, remote.files)
        entry = describe(bench, segment.base_offset, next_offset, data, seed)
        upload(objects, manifests, entry, data)
        remote.segments.append(replace(entry, state=SegmentState.COPY_FINISHED))
    return remote


def read_parts(
    bench: Bench, base_offset: int, next_offset: int, files: dict[str, bytes]
) -> dict[str, bytes]:
    """The parts of a segment; `files` takes them under the names that a restore gives them."""
    names = {part: log_name(base_offset, kind) for part, kind in _FILES.items()}
    names["snapshot"] = log_name(next_offset, SNAPSHOT)
    data = {
        part: bench.fs.read(f"{DIRECTORY}/{name}")
        for part, name in names.items()
        if bench.fs.exists(f"{DIRECTORY}/{name}")
    }
    epochs = LeaderEpochs.decode(bench.fs.read(f"{DIRECTORY}/{LEADER_EPOCH_FILE}"))
    epochs.truncate_from_end(next_offset)
    data["epochs"] = epochs.encode()
    files |= {names[part]: data[part] for part in names if part in data}
    files[LEADER_EPOCH_FILE] = data["epochs"]
    return data


def describe(
    bench: Bench, base_offset: int, next_offset: int, data: dict[str, bytes], seed: int = 0
) -> RemoteSegment:
    history = LeaderEpochs.decode(data["epochs"]).entries
    return RemoteSegment(
        id=f"copy-{seed}-{base_offset}",
        base_offset=base_offset,
        end_offset=next_offset - 1,
        size=len(data["log"]),
        record_count=next_offset - base_offset,
        max_timestamp=NOW_MS,
        append_ms=(NOW_MS + base_offset, NOW_MS + next_offset),
        epochs=restrict_epochs(history, base_offset=base_offset, end_offset=next_offset - 1),
        parts=make_parts(data),
        has_aborted="txnindex" in data,
        state=SegmentState.COPY_STARTED,
        at_ms=bench.clock.now_ms(),
    )


def make_parts(data: dict[str, bytes]) -> tuple[ObjectPart, ...]:
    return tuple(ObjectPart(name, len(body), crc32c_of(body)) for name, body in data.items())


def upload(
    objects: ObjectStore,
    manifests: ObjectManifestStore,
    segment: RemoteSegment,
    data: dict[str, bytes],
    only: Sequence[str] | None = None,
) -> None:
    """Announces a segment and puts its parts; with `only` some of them, and it stays announced."""
    now = segment.at_ms
    manifests.commit(lambda m: m.announce(segment), leader_epoch=0, writer="copier", now_ms=now)
    for part in segment.parts:
        if only is None or part.name in only:
            objects.put(HOME.part_key(segment, part.name), data[part.name])
    if only is None:
        done = replace(segment, state=SegmentState.COPY_FINISHED)
        manifests.commit(lambda m: m.finish(done), leader_epoch=0, writer="copier", now_ms=now)
