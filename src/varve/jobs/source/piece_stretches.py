"""Pieces of a topic as stretches of log data, wherever they lie.

Invariant  an object that left since the read was planned raises ObjectNotFound, one that is shorter
           than its manifest says is Corrupt.
"""

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass

from varve.foundation.errors import Corrupt, InvalidRequest, ObjectNotFound
from varve.foundation.settings import LONG_MAX
from varve.jobs.source.hot_log import open_piece
from varve.jobs.source.pieces import ColdPiece, HotPiece, KeptPiece, Piece, ServerPiece
from varve.jobs.source.record_blocks import Stretch, Wanted
from varve.jobs.source.server_stretches import fetch_stretches
from varve.jobs.tier.bucket import Bucket
from varve.object_store import ObjectStore
from varve.tiering.copy.segment_upload import LOG_PART
from varve.tiering.manifest.paths import RemotePath
from varve.tiering.manifest.segment import RemoteSegment


@dataclass(frozen=True, slots=True)
class ObjectSource:
    """The log object of a segment."""

    objects: ObjectStore
    key: str

    @property
    def name(self) -> str:
        return f"{self.objects.name}: {self.key!r}"

    def read(self, start: int, end: int) -> memoryview:
        try:
            data = self.objects.get_range(self.key, start, end)
        except ObjectNotFound as error:
            raise ObjectNotFound(
                f"{error}; its segment was replaced or expired since the read was planned: read "
                "again. If it fails again the object is lost, `varve tier fsck` tells more"
            ) from error
        if len(data) != end - start:
            raise Corrupt(
                f"{self.name} ends at {start + len(data)}, the manifest says it goes on to {end} "
                "at least; `varve tier fsck` finds such ones"
            )
        return data


def open_objects(address: Bucket | None) -> ObjectStore:
    """The store that an address names, which a read of cold pieces must have."""
    if address is None:
        raise InvalidRequest("a piece lies in object storage, and no url was given")
    return address.objects()


def log_source(objects: ObjectStore, home: RemotePath, segment: RemoteSegment) -> ObjectSource:
    """Where the log data of a cold segment is read from."""
    return ObjectSource(objects, home.part_key(segment, LOG_PART))


def wanted_of(piece: Piece, *, min_ms: int = -LONG_MAX, max_ms: int = LONG_MAX) -> Wanted:
    """What is wanted of a piece."""
    return Wanted(piece.start_offset, piece.end_offset, min_ms, max_ms, piece.aborted)


def open_stretches(
    piece: Piece, wanted: Wanted, objects: Callable[[], ObjectStore], stack: ExitStack
) -> Iterable[Stretch]:
    """Where the wanted records of a piece lie; what is opened stays so as long as the stack."""
    match piece:
        case HotPiece():
            return open_piece(piece).stretches(wanted, stack)
        case ServerPiece():
            return fetch_stretches(piece, wanted)
        case ColdPiece():
            return [cold_stretch(objects(), piece, piece.start, piece.end, wanted)]


def cold_stretch(
    objects: ObjectStore, piece: ColdPiece | KeptPiece, start: int, end: int, wanted: Wanted
) -> Stretch:
    """Batches [start, end) of the segment of a piece."""
    segment = piece.segment
    source = log_source(objects, piece.home, segment)
    return Stretch(
        source,
        piece.partition,
        start,
        end,
        wanted,
        base_offset=segment.base_offset,
        end_offset=segment.end_offset + 1,
    )
