"""What a partition of `__transaction_state` tells when it is read from its beginning.

Invariant  of each id the last record counts.
Threads    runs off the loop, before the coordinator serves.
"""

from collections.abc import Iterable
from itertools import compress

from varve.broker.state_scan import CONTROL, ScannedRecords, scan_records
from varve.broker.transactions.state import Transaction
from varve.broker.transactions.transaction_record import decode_transaction
from varve.commit_log import Log


def replay(log: Log) -> list[Transaction]:
    """Reads a whole partition; raises Corrupt, and UnsupportedFormat for what is too new."""
    where = str(log.topic_partition)
    last: dict[bytes | None, bytes | None] = {}
    for records in scan_records(log):
        last.update(_pairs(records))
    live = ((key or b"", value) for key, value in last.items() if value is not None)
    decoded = (decode_transaction(key, value, where) for key, value in live)
    return [one for one in decoded if one is not None]


def _pairs(records: ScannedRecords) -> Iterable[tuple[bytes | None, bytes | None]]:
    """Keys and values, those of markers left out."""
    are_states = [not bits & CONTROL for bits in records.attributes]
    return compress(zip(records.keys, records.values, strict=True), are_states)
