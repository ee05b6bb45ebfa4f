"""Control records: versions, types and sizes as spec §1.7 has them."""

import pytest

from varve.foundation.errors import Corrupt
from varve.records import Batch, ControlType, decode_control_record, end_transaction_marker

EPOCH_7 = bytes.fromhex("000000000007")


def test_abort_marker_is_78_bytes_and_tells_its_epoch() -> None:
    marker = end_transaction_marker(
        committed=False, producer_id=1, producer_epoch=0, coordinator_epoch=-1, timestamp=1
    )
    assert len(marker) == 78
    columns = Batch(marker).columns()
    control = decode_control_record(columns.key(0) or b"", columns.value(0))
    assert (control.type, control.coordinator_epoch) == (ControlType.ABORT, -1)


def test_higher_versions_are_read_as_version_0() -> None:
    control = decode_control_record(bytes.fromhex("00090001"), bytes.fromhex("0005000000070000"))
    assert (control.type, control.version, control.coordinator_epoch) == (ControlType.COMMIT, 9, 7)


@pytest.mark.parametrize("number", [2, 3, 4, 5, 6])
def test_metadata_types_are_named_and_their_values_left_alone(number: int) -> None:
    control = decode_control_record(bytes([0, 0, 0, number]), None)
    assert control.type == number
    assert control.coordinator_epoch is None


@pytest.mark.parametrize("number", [7, 32767, -1])
def test_other_types_are_unknown(number: int) -> None:
    key = b"\0\0" + number.to_bytes(2, "big", signed=True)
    assert decode_control_record(key, None).type is ControlType.UNKNOWN


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, EPOCH_7),
        (b"", EPOCH_7),
        (b"\0\0\0", EPOCH_7),
        (b"\xff\xff\0\1", EPOCH_7),
        (b"\0\0\0\1", None),
        (b"\0\0\0\1", EPOCH_7[:5]),
        (b"\0\0\0\0", b"\xff\xff\0\0\0\1"),
    ],
)
def test_short_or_negative_versions_are_corrupt(key: bytes | None, value: bytes | None) -> None:
    with pytest.raises(Corrupt):
        decode_control_record(key, value)
