"""What members of a consumer group say to each other through the coordinator."""

from varve.wire.schema import (
    BYTES,
    INT32,
    STRING,
    Message,
    array,
    scalar,
    wire_message,
    wire_struct,
)


@wire_struct
class OwnedPartitions:
    topic: str = scalar(STRING, "1+", "")
    partitions: list[int] = array(INT32, "1+")


@wire_message("0-3")
class ConsumerProtocolSubscription(Message):
    topics: list[str] = array(STRING)
    user_data: bytes | None = scalar(BYTES, "0+", None, nullable="0+")
    owned_partitions: list[OwnedPartitions] = array(OwnedPartitions, "1+")
    generation_id: int = scalar(INT32, "2+", -1)
    rack_id: str | None = scalar(STRING, "3+", None, nullable="3+")


@wire_struct
class AssignedPartitions:
    topic: str = scalar(STRING, "0+", "")
    partitions: list[int] = array(INT32)


@wire_message("0-3")
class ConsumerProtocolAssignment(Message):
    assigned_partitions: list[AssignedPartitions] = array(AssignedPartitions)
    user_data: bytes | None = scalar(BYTES, "0+", None, nullable="0+")
