"""What the files of a closed partition hold, batch by batch, and where two partitions differ."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from varve.commit_log.names import LOG, TXN_INDEX
from varve.commit_log.transaction_index import AbortedTransaction, TransactionIndex
from varve.records import Batch, BatchHeader, Codec, Record

# Compressors differ in their bytes, so neither the size nor the checksum need be equal.
CODEC_FIELDS = ("batch_length", "crc")


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """One batch of a data file; `segment` is the base offset of the segment that holds it."""

    segment: int
    position: int
    header: BatchHeader
    records: tuple[Record, ...]
    bytes: bytes

    @property
    def what(self) -> str:
        header = self.header
        kind = "control batch" if header.is_control else "batch"
        return (
            f"{kind} {header.base_offset}..{header.last_offset} of segment {self.segment} "
            f"(position {self.position}, producer {header.producer_id}, {header.codec.name})"
        )


@dataclass(frozen=True, slots=True)
class StoredPartition:
    """All batches, the aborted transactions each segment lists, and the data files as bytes."""

    batches: Mapping[int, StoredBatch]
    aborted: Mapping[int, tuple[AbortedTransaction, ...]]
    files: Mapping[str, bytes]

    @property
    def segments(self) -> list[int]:
        return [int(Path(name).stem) for name in self.files]

    def from_offset(self, offset: int) -> "StoredPartition":
        """What is left to compare when the log starts there: data in batches behind it.

        Before it the two cleaners differ: varve drops what is superseded there, Kafka keeps it,
        and with it the markers of transactions that began there.
        """
        if offset == 0:
            return self
        batches = {
            base: batch
            for base, batch in self.batches.items()
            if base >= offset and not batch.header.is_control
        }
        aborted = {
            segment: tuple(entry for entry in entries if entry.first_offset >= offset)
            for segment, entries in self.aborted.items()
        }
        return StoredPartition(batches, aborted, self.files)

    def all_aborted(self) -> list[AbortedTransaction]:
        return [entry for entries in self.aborted.values() for entry in entries]

    def records(self) -> list[Record]:
        """Data records of all batches, aborted ones too."""
        return [
            record
            for batch in self.batches.values()
            if not batch.header.is_control
            for record in batch.records
        ]


def read_partition(directory: Path) -> StoredPartition:
    """Reads the live data files and transaction indexes; every checksum must be right."""
    files = {path.name: path.read_bytes() for path in sorted(directory.glob(f"*{LOG}"))}
    batches: dict[int, StoredBatch] = {}
    for name, data in files.items():
        for batch in _walk(int(Path(name).stem), data):
            if batch.header.base_offset in batches:
                raise AssertionError(f"{directory}: two batches at {batch.header.base_offset}")
            batches[batch.header.base_offset] = batch
    aborted: dict[int, tuple[AbortedTransaction, ...]] = {}
    for path in sorted(directory.glob(f"*{TXN_INDEX}")):
        entries = TransactionIndex.decode(path.read_bytes(), int(path.stem), str(path)).entries()
        if entries:
            aborted[int(path.stem)] = tuple(entries)
    return StoredPartition(batches, aborted, files)


def _walk(segment: int, data: bytes) -> Iterator[StoredBatch]:
    position = 0
    while position < len(data):
        batch = Batch(data, f"segment {segment}", position=position)
        if not batch.is_valid_crc():
            raise AssertionError(f"segment {segment}: wrong checksum at position {position}")
        end = position + batch.header.size
        records = tuple(batch.records())
        yield StoredBatch(segment, position, batch.header, records, data[position:end])
        position = end


def find_differences(
    ours: StoredPartition, theirs: StoredPartition, *, same_segments: bool = True
) -> list[str]:
    """One sentence per difference: which batch, which field, what each side has.

    Without `same_segments` the same batches may lie in other segments: varve joins segments by
    their sizes after a cleaning, Kafka by those before it.
    """
    found = [*_compare_batches(ours, theirs)]
    if not same_segments:
        mine, other = ours.all_aborted(), theirs.all_aborted()
        if mine != other:
            found.append(f"transaction indexes: varve {mine}, Kafka {other}")
        return found
    if ours.segments != theirs.segments:
        found.append(f"segments: varve {ours.segments}, Kafka {theirs.segments}")
    if ours.aborted != theirs.aborted:
        found.append(f"transaction indexes: varve {ours.aborted}, Kafka {theirs.aborted}")
    return found


def _compare_batches(ours: StoredPartition, theirs: StoredPartition) -> Iterator[str]:
    for offset in sorted({*ours.batches, *theirs.batches}):
        mine, other = ours.batches.get(offset), theirs.batches.get(offset)
        if mine is None:
            assert other is not None
            yield f"only Kafka kept the {_show(other)}"
        elif other is None:
            yield f"only varve kept the {_show(mine)}"
        else:
            yield from _compare_batch(mine, other)


def _show(batch: StoredBatch) -> str:
    return f"{batch.what} with {len(batch.records)} records: {batch.header}"


def _compare_batch(ours: StoredBatch, theirs: StoredBatch) -> Iterator[str]:
    is_plain = ours.header.codec is Codec.NONE
    for name, mine, other in zip(BatchHeader._fields, ours.header, theirs.header, strict=True):
        if mine != other and (is_plain or name not in CODEC_FIELDS):
            yield f"{ours.what}: {name}: varve {mine}, Kafka {other}"
    if ours.records != theirs.records:
        yield f"{ours.what}: records: varve {ours.records}, Kafka {theirs.records}"
    elif is_plain and ours.bytes != theirs.bytes:
        yield f"{ours.what}: bytes: varve {ours.bytes.hex()}, Kafka {theirs.bytes.hex()}"
