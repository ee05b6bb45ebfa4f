"""The objects of a segment that a job wrote aside, and its announcement.

Invariant  an object is written only under an id that the manifest announces, with the sizes and
           checksums of all parts.
Crash      what was announced and not finished is taken back by the next run.
"""

from varve.cleaning.compaction.rewrite import WrittenSegment
from varve.commit_log.names import CLEANED, INDEX, KEYS, LOG, TIME_INDEX, TXN_INDEX, log_name
from varve.disk import FileSystem
from varve.jobs.compact.settings import WRITER
from varve.jobs.tier.remote_files import RemoteInput
from varve.tiering.copy.segment_upload import (
    EPOCHS_PART,
    SNAPSHOT_PART,
    BytesContent,
    FileContent,
    PartContent,
    measure_file,
)
from varve.tiering.manifest.segment import RemoteSegment
from varve.tiering.manifest.store import ManifestStore


def gather_group(
    fs: FileSystem,
    directory: str,
    written: WrittenSegment,
    last: RemoteInput,
    *,
    has_keys: bool = True,
) -> list[PartContent]:
    """The objects of a new segment; producers and leader epochs are those of its last input.

    It goes without its key index (`has_keys`) while a transaction in it is not decided.
    """
    kinds = [LOG, INDEX, TIME_INDEX, *([TXN_INDEX] if written.has_txn_index else [])]

    def measure(kind: str) -> FileContent:
        path = f"{directory}/{log_name(written.base_offset, kind)}{CLEANED}"
        return measure_file(fs, kind.removeprefix("."), path)

    carried = [_carry(last, name) for name in (SNAPSHOT_PART, EPOCHS_PART)]
    return [*map(measure, kinds), *carried, *([measure(KEYS)] if has_keys else [])]


def _carry(last: RemoteInput, name: str) -> BytesContent:
    data = last.read_part(name)
    part = last.remote.find_part(name)
    assert part is not None, "it was read by it"
    return BytesContent(data, part)


def announce(
    manifests: ManifestStore, segment: RemoteSegment, *, now_ms: int, writer: str = WRITER
) -> None:
    manifests.commit(
        lambda manifest: manifest.announce(segment), leader_epoch=None, writer=writer, now_ms=now_ms
    )
