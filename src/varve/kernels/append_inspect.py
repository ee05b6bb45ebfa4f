"""The inspection of a batch on its way into a log, with the verdict most batches get.

Invariant  PLAIN is given only to a batch that every rule which no setting governs lets through, and
           that is stored byte for byte as it came; what others lack, the caller finds out.
"""

from typing import Final

from varve.kernels.batch_scan import HEADER_SIZE, Field, inspect_batch, inspection_row
from varve.kernels.compile import byte_buffers, kernel
from varve.kernels.loads import Bytes
from varve.kernels.record_parse import Row, Summary
from varve.kernels.status import RecordStatus, ScanStatus

PLAIN: Final = -1

_SIZE = int(Field.SIZE)
_BASE_OFFSET = int(Field.BASE_OFFSET)
_LAST_OFFSET = int(Field.LAST_OFFSET)
_ATTRIBUTES = int(Field.ATTRIBUTES)
_MAX_TIMESTAMP = int(Field.MAX_TIMESTAMP)
_PRODUCER_ID = int(Field.PRODUCER_ID)
_BASE_SEQUENCE = int(Field.BASE_SEQUENCE)
_RECORD_COUNT = int(Field.RECORD_COUNT)
_RECORDS_STATUS = int(Summary.RECORDS_STATUS)
_RECORDS_MAX_TIMESTAMP = int(Summary.RECORDS_MAX_TIMESTAMP)
_OK = int(ScanStatus.OK)
_RECORDS_OK = int(RecordStatus.OK)
_CODEC_CONTROL_OR_APPEND_TIME = 0x07 | 0x20 | 0x08


@kernel
def inspect_append(buffer: Bytes, out: Row) -> int:
    """`inspect_batch` over the whole buffer; PLAIN for OK where nothing is left to object."""
    status = inspect_batch(buffer, 0, buffer.size, out)
    if (
        status == _OK
        and out[_RECORDS_STATUS] == _RECORDS_OK
        and out[_SIZE] == buffer.size
        and out[_BASE_OFFSET] == 0
        and out[_RECORD_COUNT] > 0
        and out[_LAST_OFFSET] + 1 == out[_RECORD_COUNT]
        and out[_ATTRIBUTES] & _CODEC_CONTROL_OR_APPEND_TIME == 0
        and (out[_PRODUCER_ID] < 0 or out[_BASE_SEQUENCE] >= 0)
        and out[_RECORDS_MAX_TIMESTAMP] == out[_MAX_TIMESTAMP]
    ):
        return PLAIN
    return status


def warm() -> None:
    """Compile for the argument types in use."""
    for buffer in byte_buffers(bytes(HEADER_SIZE)):
        inspect_append(buffer, inspection_row())
