"""AlterUserScramCredentials, API key 51."""

from varve.wire.schema import (
    BYTES,
    INT8,
    INT16,
    INT32,
    STRING,
    Message,
    array,
    scalar,
    wire_message,
    wire_struct,
)


@wire_struct
class ScramCredentialDeletion:
    name: str = scalar(STRING, "0+", "")
    mechanism: int = scalar(INT8)


@wire_struct
class ScramCredentialUpsertion:
    name: str = scalar(STRING, "0+", "")
    mechanism: int = scalar(INT8)
    iterations: int = scalar(INT32)
    salt: bytes = scalar(BYTES, "0+", b"")
    salted_password: bytes = scalar(BYTES, "0+", b"")


@wire_message("0", flexible="0+", api_key=51)
class AlterUserScramCredentialsRequest(Message):
    deletions: list[ScramCredentialDeletion] = array(ScramCredentialDeletion)
    upsertions: list[ScramCredentialUpsertion] = array(ScramCredentialUpsertion)


@wire_struct
class AlterUserScramCredentialsResult:
    user: str = scalar(STRING, "0+", "")
    error_code: int = scalar(INT16)
    error_message: str | None = scalar(STRING, "0+", "", nullable="0+")


@wire_message("0", flexible="0+", api_key=51)
class AlterUserScramCredentialsResponse(Message):
    throttle_time_ms: int = scalar(INT32)
    results: list[AlterUserScramCredentialsResult] = array(AlterUserScramCredentialsResult)
