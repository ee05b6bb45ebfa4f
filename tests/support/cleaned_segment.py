"""Writes a cleaned segment aside, as cleaning leaves it for the swap."""

from collections.abc import Sequence

from varve.commit_log import AbortedTransaction
from varve.commit_log.names import CLEANED, INDEX, KEYS, LOG, TIME_INDEX, TXN_INDEX, log_name
from varve.commit_log.sparse_index import OffsetIndex, TimeIndex
from varve.commit_log.transaction_index import TransactionIndex
from varve.disk import FileSystem
from varve.records import Record, build_batch, decode_header

INDEX_BYTES = 1 << 20


def write_cleaned(
    fs: FileSystem,
    directory: str,
    base_offset: int,
    batches: Sequence[bytes],
    *,
    aborted: Sequence[AbortedTransaction] = (),
    keys: bytes | None = b"keys",
) -> int:
    """Writes and syncs the `.cleaned` files; gives the size of the data file."""
    offset_index = OffsetIndex(base_offset, INDEX_BYTES)
    time_index = TimeIndex(base_offset, INDEX_BYTES)
    txn_index = TransactionIndex(base_offset)
    position, newest = 0, (-1, base_offset)
    for number, data in enumerate(batches):
        header = decode_header(data)
        if header.max_timestamp > newest[0]:
            newest = (header.max_timestamp, header.last_offset)
        if number % 2:
            offset_index.append(header.last_offset, position)
            time_index.append(*newest)
        position += len(data)
    if newest[0] >= 0:
        time_index.append(*newest, skip_full_check=True)
    for one in aborted:
        txn_index.append(one)
    contents = {
        LOG: b"".join(batches),
        INDEX: offset_index.encode(),
        TIME_INDEX: time_index.encode(),
    }
    if txn_index.count:
        contents[TXN_INDEX] = txn_index.encode()
    if keys is not None:
        contents[KEYS] = keys
    for kind, data in contents.items():
        with fs.open_writable(f"{directory}/{log_name(base_offset, kind)}{CLEANED}") as file:
            file.truncate(0)
            if data:
                file.write_at(0, data)
            file.sync()
    return position


def other_generation(data: bytes) -> bytes:
    """A batch of the same offsets and producer whose records differ; a marker stays as it is."""
    header = decode_header(data)
    if header.is_control:
        return data
    deltas = list(range(0, header.last_offset_delta + 1, 2))
    return build_batch(
        [Record(b"clean", b"%d" % delta, timestamp=header.max_timestamp) for delta in deltas],
        base_offset=header.base_offset,
        leader_epoch=header.partition_leader_epoch,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        transactional=header.is_transactional,
        offset_deltas=deltas,
        last_offset_delta=header.last_offset_delta,
    )
