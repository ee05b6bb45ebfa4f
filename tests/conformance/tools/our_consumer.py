"""Records of a varve log as a Kafka consumer would hand them out."""

from collections.abc import Iterator

from varve.commit_log import FetchResult, Isolation, Log
from varve.records import Batch, Record
from varve.records.building import ControlType, decode_control_record


def consume(
    log: Log, isolation: Isolation, max_bytes: int = 4096
) -> Iterator[tuple[Batch, Record]]:
    """From the log start up to the limit of the isolation, as many fetches as it takes."""
    offset = log.log_start_offset
    while True:
        fetched = log.read(start_offset=offset, max_bytes=max_bytes, isolation=isolation)
        if not fetched.data:
            return
        yield from _visible(fetched, offset)
        if fetched.next_offset <= offset:
            raise AssertionError(f"a fetch at {offset} does not lead on")
        offset = fetched.next_offset


def _visible(fetched: FetchResult, offset: int) -> Iterator[tuple[Batch, Record]]:
    """What the client keeps of one fetch: KIP-98's rule for aborted transactions."""
    pending = sorted(fetched.aborted, key=lambda aborted: aborted.first_offset)
    voided: set[int] = set()
    position = 0
    while position < len(fetched.data):
        batch = Batch(fetched.data, position=position)
        header = batch.header
        position += header.size
        while pending and pending[0].first_offset <= header.last_offset:
            voided.add(pending.pop(0).producer_id)
        if header.is_control:
            if _is_abort(batch):
                voided.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in voided):
            for record in batch.records():
                if record.offset >= offset:
                    yield batch, record


def _is_abort(batch: Batch) -> bool:
    records = batch.records()
    if not records or records[0].key is None:
        return False
    return decode_control_record(records[0].key, records[0].value).type is ControlType.ABORT
