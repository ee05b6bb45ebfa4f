"""DescribeUserScramCredentials, API key 50."""

from varve.wire.schema import (
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
class UserName:
    name: str = scalar(STRING, "0+", "")


@wire_message("0", flexible="0+", api_key=50)
class DescribeUserScramCredentialsRequest(Message):
    users: list[UserName] | None = array(UserName, nullable="0+")


@wire_struct
class CredentialInfo:
    mechanism: int = scalar(INT8)
    iterations: int = scalar(INT32)


@wire_struct
class DescribeUserScramCredentialsResult:
    user: str = scalar(STRING, "0+", "")
    error_code: int = scalar(INT16)
    error_message: str | None = scalar(STRING, "0+", "", nullable="0+")
    credential_infos: list[CredentialInfo] = array(CredentialInfo)


@wire_message("0", flexible="0+", api_key=50)
class DescribeUserScramCredentialsResponse(Message):
    throttle_time_ms: int = scalar(INT32)
    error_code: int = scalar(INT16)
    error_message: str | None = scalar(STRING, "0+", "", nullable="0+")
    results: list[DescribeUserScramCredentialsResult] = array(DescribeUserScramCredentialsResult)
