"""Messages of logins, ACLs, SCRAM credentials and client quotas."""

from varve.wire.schema import Int8, Int16, Int32, Int64, Message, Struct, field


class SaslHandshakeRequest(Message, versions="0-1", api_key=17):
    mechanism: str = field()


class SaslHandshakeResponse(Message, versions="0-1", api_key=17):
    error_code: Int16 = field()
    mechanisms: list[str] = field()


class SaslAuthenticateRequest(Message, versions="0-2", flexible="2+", api_key=36):
    auth_bytes: bytes = field()


class SaslAuthenticateResponse(Message, versions="0-2", flexible="2+", api_key=36):
    error_code: Int16 = field()
    error_message: str | None = field()
    auth_bytes: bytes = field()
    session_lifetime_ms: Int64 = field("1+")


class AclBindingFilter(Struct):
    resource_type_filter: Int8 = field()
    resource_name_filter: str | None = field()
    pattern_type_filter: Int8 = field("1+", 3)
    principal_filter: str | None = field()
    host_filter: str | None = field()
    operation: Int8 = field()
    permission_type: Int8 = field()


class DescribeAclsRequest(AclBindingFilter, Message, versions="1-3", flexible="2+", api_key=29):
    pass


class AclDescription(Struct):
    principal: str = field()
    host: str = field()
    operation: Int8 = field()
    permission_type: Int8 = field()


class DescribeAclsResource(Struct):
    resource_type: Int8 = field()
    resource_name: str = field()
    pattern_type: Int8 = field("1+", 3)
    acls: list[AclDescription] = field()


class DescribeAclsResponse(Message, versions="1-3", flexible="2+", api_key=29):
    throttle_time_ms: Int32 = field()
    error_code: Int16 = field()
    error_message: str | None = field()
    resources: list[DescribeAclsResource] = field()


class AclCreation(Struct):
    resource_type: Int8 = field()
    resource_name: str = field()
    resource_pattern_type: Int8 = field("1+", 3)
    principal: str = field()
    host: str = field()
    operation: Int8 = field()
    permission_type: Int8 = field()


class CreateAclsRequest(Message, versions="1-3", flexible="2+", api_key=30):
    creations: list[AclCreation] = field()


class AclCreationResult(Struct):
    error_code: Int16 = field()
    error_message: str | None = field()


class CreateAclsResponse(Message, versions="1-3", flexible="2+", api_key=30):
    throttle_time_ms: Int32 = field()
    results: list[AclCreationResult] = field()


class DeleteAclsRequest(Message, versions="1-3", flexible="2+", api_key=31):
    filters: list[AclBindingFilter] = field()


class DeleteAclsMatchingAcl(Struct):
    error_code: Int16 = field()
    error_message: str | None = field()
    resource_type: Int8 = field()
    resource_name: str = field()
    pattern_type: Int8 = field("1+", 3)
    principal: str = field()
    host: str = field()
    operation: Int8 = field()
    permission_type: Int8 = field()


class DeleteAclsFilterResult(Struct):
    error_code: Int16 = field()
    error_message: str | None = field()
    matching_acls: list[DeleteAclsMatchingAcl] = field()


class DeleteAclsResponse(Message, versions="1-3", flexible="2+", api_key=31):
    throttle_time_ms: Int32 = field()
    filter_results: list[DeleteAclsFilterResult] = field()


class ComponentData(Struct):
    entity_type: str = field()
    match_type: Int8 = field()
    match: str | None = field()


class DescribeClientQuotasRequest(Message, versions="0-1", flexible="1+", api_key=48):
    components: list[ComponentData] = field()
    strict: bool = field()


class EntityData(Struct):
    entity_type: str = field()
    entity_name: str | None = field()


class ValueData(Struct):
    key: str = field()
    value: float = field()


class DescribedQuotaEntry(Struct):
    entity: list[EntityData] = field()
    values: list[ValueData] = field()


class DescribeClientQuotasResponse(Message, versions="0-1", flexible="1+", api_key=48):
    throttle_time_ms: Int32 = field()
    error_code: Int16 = field()
    error_message: str | None = field()
    entries: list[DescribedQuotaEntry] | None = field()


class OpData(Struct):
    key: str = field()
    value: float = field()
    remove: bool = field()


class AlteredQuotaEntry(Struct):
    entity: list[EntityData] = field()
    ops: list[OpData] = field()


class AlterClientQuotasRequest(Message, versions="0-1", flexible="1+", api_key=49):
    entries: list[AlteredQuotaEntry] = field()
    validate_only: bool = field()


class EntryDataResponse(Struct):
    error_code: Int16 = field()
    error_message: str | None = field()
    entity: list[EntityData] = field()


class AlterClientQuotasResponse(Message, versions="0-1", flexible="1+", api_key=49):
    throttle_time_ms: Int32 = field()
    entries: list[EntryDataResponse] = field()


class UserName(Struct):
    name: str = field()


class DescribeUserScramCredentialsRequest(Message, versions="0", flexible="0+", api_key=50):
    users: list[UserName] | None = field()


class CredentialInfo(Struct):
    mechanism: Int8 = field()
    iterations: Int32 = field()


class DescribeUserScramCredentialsResult(Struct):
    user: str = field()
    error_code: Int16 = field()
    error_message: str | None = field()
    credential_infos: list[CredentialInfo] = field()


class DescribeUserScramCredentialsResponse(Message, versions="0", flexible="0+", api_key=50):
    throttle_time_ms: Int32 = field()
    error_code: Int16 = field()
    error_message: str | None = field()
    results: list[DescribeUserScramCredentialsResult] = field()


class ScramCredentialDeletion(Struct):
    name: str = field()
    mechanism: Int8 = field()


class ScramCredentialUpsertion(Struct):
    name: str = field()
    mechanism: Int8 = field()
    iterations: Int32 = field()
    salt: bytes = field()
    salted_password: bytes = field()


class AlterUserScramCredentialsRequest(Message, versions="0", flexible="0+", api_key=51):
    deletions: list[ScramCredentialDeletion] = field()
    upsertions: list[ScramCredentialUpsertion] = field()


class AlterUserScramCredentialsResult(Struct):
    user: str = field()
    error_code: Int16 = field()
    error_message: str | None = field()


class AlterUserScramCredentialsResponse(Message, versions="0", flexible="0+", api_key=51):
    throttle_time_ms: Int32 = field()
    results: list[AlterUserScramCredentialsResult] = field()
