"""Messages of logins, ACLs, SCRAM credentials and client quotas."""

from varve.wire.schema import (
    BOOLEAN,
    BYTES,
    FLOAT64,
    INT8,
    INT16,
    INT32,
    INT64,
    STRING,
    Message,
    array,
    scalar,
    wire_message,
    wire_struct,
)

# SaslHandshake, API key 17


@wire_message("0-1", api_key=17)
class SaslHandshakeRequest(Message):
    mechanism: str = scalar(STRING, "0+", "")


@wire_message("0-1", api_key=17)
class SaslHandshakeResponse(Message):
    error_code: int = scalar(INT16)
    mechanisms: list[str] = array(STRING)


# SaslAuthenticate, API key 36


@wire_message("0-2", flexible="2+", api_key=36)
class SaslAuthenticateRequest(Message):
    auth_bytes: bytes = scalar(BYTES, "0+", b"")


@wire_message("0-2", flexible="2+", api_key=36)
class SaslAuthenticateResponse(Message):
    error_code: int = scalar(INT16)
    error_message: str | None = scalar(STRING, "0+", "", nullable="0+")
    auth_bytes: bytes = scalar(BYTES, "0+", b"")
    session_lifetime_ms: int = scalar(INT64, "1+")


# DescribeAcls, API key 29


@wire_message("1-3", flexible="2+", api_key=29)
class DescribeAclsRequest(Message):
    resource_type_filter: int = scalar(INT8)
    resource_name_filter: str | None = scalar(STRING, "0+", "", nullable="0+")
    pattern_type_filter: int = scalar(INT8, "1+", 3)
    principal_filter: str | None = scalar(STRING, "0+", "", nullable="0+")
    host_filter: str | None = scalar(STRING, "0+", "", nullable="0+")
    operation: int = scalar(INT8)
    permission_type: int = scalar(INT8)


@wire_struct
class AclDescription:
    principal: str = scalar(STRING, "0+", "")
    host: str = scalar(STRING, "0+", "")
    operation: int = scalar(INT8)
    permission_type: int = scalar(INT8)


@wire_struct
class DescribeAclsResource:
    resource_type: int = scalar(INT8)
    resource_name: str = scalar(STRING, "0+", "")
    pattern_type: int = scalar(INT8, "1+", 3)
    acls: list[AclDescription] = array(AclDescription)


@wire_message("1-3", flexible="2+", api_key=29)
class DescribeAclsResponse(Message):
    throttle_time_ms: int = scalar(INT32)
    error_code: int = scalar(INT16)
    error_message: str | None = scalar(STRING, "0+", "", nullable="0+")
    resources: list[DescribeAclsResource] = array(DescribeAclsResource)


# CreateAcls, API key 30


@wire_struct
class AclCreation:
    resource_type: int = scalar(INT8)
    resource_name: str = scalar(STRING, "0+", "")
    resource_pattern_type: int = scalar(INT8, "1+", 3)
    principal: str = scalar(STRING, "0+", "")
    host: str = scalar(STRING, "0+", "")
    operation: int = scalar(INT8)
    permission_type: int = scalar(INT8)


@wire_message("1-3", flexible="2+", api_key=30)
class CreateAclsRequest(Message):
    creations: list[AclCreation] = array(AclCreation)


@wire_struct
class AclCreationResult:
    error_code: int = scalar(INT16)
    error_message: str | None = scalar(STRING, "0+", "", nullable="0+")


@wire_message("1-3", flexible="2+", api_key=30)
class CreateAclsResponse(Message):
    throttle_time_ms: int = scalar(INT32)
    results: list[AclCreationResult] = array(AclCreationResult)


# DeleteAcls, API key 31


@wire_struct
class DeleteAclsFilter:
    resource_type_filter: int = scalar(INT8)
    resource_name_filter: str | None = scalar(STRING, "0+", "", nullable="0+")
    pattern_type_filter: int = scalar(INT8, "1+", 3)
    principal_filter: str | None = scalar(STRING, "0+", "", nullable="0+")
    host_filter: str | None = scalar(STRING, "0+", "", nullable="0+")
    operation: int = scalar(INT8)
    permission_type: int = scalar(INT8)


@wire_message("1-3", flexible="2+", api_key=31)
class DeleteAclsRequest(Message):
    filters: list[DeleteAclsFilter] = array(DeleteAclsFilter)


@wire_struct
class DeleteAclsMatchingAcl:
    error_code: int = scalar(INT16)
    error_message: str | None = scalar(STRING, "0+", "", nullable="0+")
    resource_type: int = scalar(INT8)
    resource_name: str = scalar(STRING, "0+", "")
    pattern_type: int = scalar(INT8, "1+", 3)
    principal: str = scalar(STRING, "0+", "")
    host: str = scalar(STRING, "0+", "")
    operation: int = scalar(INT8)
    permission_type: int = scalar(INT8)


@wire_struct
class DeleteAclsFilterResult:
    error_code: int = scalar(INT16)
    error_message: str | None = scalar(STRING, "0+", "", nullable="0+")
    matching_acls: list[DeleteAclsMatchingAcl] = array(DeleteAclsMatchingAcl)


@wire_message("1-3", flexible="2+", api_key=31)
class DeleteAclsResponse(Message):
    throttle_time_ms: int = scalar(INT32)
    filter_results: list[DeleteAclsFilterResult] = array(DeleteAclsFilterResult)


# DescribeClientQuotas, API key 48


@wire_struct
class ComponentData:
    entity_type: str = scalar(STRING, "0+", "")
    match_type: int = scalar(INT8)
    match: str | None = scalar(STRING, "0+", "", nullable="0+")


@wire_message("0-1", flexible="1+", api_key=48)
class DescribeClientQuotasRequest(Message):
    components: list[ComponentData] = array(ComponentData)
    strict: bool = scalar(BOOLEAN, "0+", False)


@wire_struct
class DescribedQuotaEntity:
    entity_type: str = scalar(STRING, "0+", "")
    entity_name: str | None = scalar(STRING, "0+", "", nullable="0+")


@wire_struct
class ValueData:
    key: str = scalar(STRING, "0+", "")
    value: float = scalar(FLOAT64, "0+", 0.0)


@wire_struct
class DescribedQuotaEntry:
    entity: list[DescribedQuotaEntity] = array(DescribedQuotaEntity)
    values: list[ValueData] = array(ValueData)


@wire_message("0-1", flexible="1+", api_key=48)
class DescribeClientQuotasResponse(Message):
    throttle_time_ms: int = scalar(INT32)
    error_code: int = scalar(INT16)
    error_message: str | None = scalar(STRING, "0+", "", nullable="0+")
    entries: list[DescribedQuotaEntry] | None = array(DescribedQuotaEntry, nullable="0+")


# AlterClientQuotas, API key 49


@wire_struct
class AlteredQuotaEntity:
    entity_type: str = scalar(STRING, "0+", "")
    entity_name: str | None = scalar(STRING, "0+", "", nullable="0+")


@wire_struct
class OpData:
    key: str = scalar(STRING, "0+", "")
    value: float = scalar(FLOAT64, "0+", 0.0)
    remove: bool = scalar(BOOLEAN, "0+", False)


@wire_struct
class AlteredQuotaEntry:
    entity: list[AlteredQuotaEntity] = array(AlteredQuotaEntity)
    ops: list[OpData] = array(OpData)


@wire_message("0-1", flexible="1+", api_key=49)
class AlterClientQuotasRequest(Message):
    entries: list[AlteredQuotaEntry] = array(AlteredQuotaEntry)
    validate_only: bool = scalar(BOOLEAN, "0+", False)


@wire_struct
class EntryDataResponse:
    error_code: int = scalar(INT16)
    error_message: str | None = scalar(STRING, "0+", "", nullable="0+")
    entity: list[AlteredQuotaEntity] = array(AlteredQuotaEntity)


@wire_message("0-1", flexible="1+", api_key=49)
class AlterClientQuotasResponse(Message):
    throttle_time_ms: int = scalar(INT32)
    entries: list[EntryDataResponse] = array(EntryDataResponse)


# DescribeUserScramCredentials, API key 50


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


# AlterUserScramCredentials, API key 51


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
