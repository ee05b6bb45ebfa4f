"""Kafka's messages: declared once, encoded and decoded by functions compiled per version."""

from varve.wire.apis import APIS, Api, ApiKey
from varve.wire.codec import (
    RequestHeader,
    decode,
    decode_exactly,
    encode,
    encode_parts,
    encoded_size,
    read_request_header,
    skip_tags,
    write_request_header,
    write_response_header,
)
from varve.wire.errors import ErrorCode, KafkaError, code_for
from varve.wire.schema import NO_ID, Message

__all__ = [
    "APIS",
    "NO_ID",
    "Api",
    "ApiKey",
    "ErrorCode",
    "KafkaError",
    "Message",
    "RequestHeader",
    "code_for",
    "decode",
    "decode_exactly",
    "encode",
    "encode_parts",
    "encoded_size",
    "read_request_header",
    "skip_tags",
    "write_request_header",
    "write_response_header",
]
