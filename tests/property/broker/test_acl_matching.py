"""The quick authorizer says what a slow reading of Kafka's rules says, before and after changes."""

from hypothesis import given
from hypothesis import strategies as st

from varve.broker.request import ConnectionContext, Operation, Principal, ResourceType
from varve.broker.security.acls import (
    ANY_PRINCIPAL,
    AclAuthorizer,
    AclBinding,
    AclFilter,
    AclTable,
    PatternType,
    Permission,
)
from varve.broker.settings import SecuritySettings
from varve.commit_log.health import DirectoryHealth
from varve.disk import MemoryFileSystem
from varve.foundation.clock import ManualClock

NAMES = st.sampled_from(["a", "ab", "abc", "b", "*"])
TYPES = st.sampled_from([ResourceType.TOPIC, ResourceType.GROUP])
OPERATIONS = st.sampled_from(
    [
        Operation.ALL,
        Operation.READ,
        Operation.WRITE,
        Operation.CREATE,
        Operation.DELETE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.ALTER_CONFIGS,
        Operation.DESCRIBE_CONFIGS,
    ]
)
HOSTS = ["10.0.0.1", "10.0.0.2"]
BINDINGS = st.builds(
    AclBinding,
    type=TYPES,
    name=NAMES,
    pattern=st.sampled_from([PatternType.LITERAL, PatternType.PREFIXED]),
    principal=st.sampled_from(["User:u", "User:v", ANY_PRINCIPAL]),
    host=st.sampled_from(["*", *HOSTS]),
    operation=OPERATIONS,
    permission=st.sampled_from([Permission.ALLOW, Permission.ALLOW, Permission.DENY]),
)
QUESTIONS = st.tuples(
    st.sampled_from(["u", "v", "root"]),
    st.sampled_from(HOSTS),
    OPERATIONS,
    TYPES,
    st.sampled_from(["a", "ab", "abc", "abcd", "b", "c"]),
)
IMPLIES = {
    Operation.READ: {Operation.DESCRIBE},
    Operation.WRITE: {Operation.DESCRIBE},
    Operation.DELETE: {Operation.DESCRIBE},
    Operation.ALTER: {Operation.DESCRIBE},
    Operation.ALTER_CONFIGS: {Operation.DESCRIBE_CONFIGS},
}


def _says(binding: AclBinding, user: str, host: str, type: ResourceType, name: str) -> bool:
    is_named = binding.name in ("*", name)
    if binding.pattern is PatternType.PREFIXED:
        is_named = name[: len(binding.name)] == binding.name
    return (
        binding.type == type
        and is_named
        and binding.principal in (f"User:{user}", "User:*")
        and binding.host in ("*", host)
    )


def _model(
    bindings: list[AclBinding],
    user: str,
    host: str,
    operation: Operation,
    type: ResourceType,
    name: str,
) -> bool:
    if user == "root":
        return True
    spoken = [one for one in bindings if _says(one, user, host, type, name)]
    for one in spoken:
        if one.permission is Permission.DENY and one.operation in (Operation.ALL, operation):
            return False
    for one in spoken:
        granted = {one.operation} | IMPLIES.get(one.operation, set())
        if one.permission is Permission.ALLOW and granted & {Operation.ALL, operation}:
            return True
    return False


def _connection(user: str, host: str) -> ConnectionContext:
    return ConnectionContext(1, "SASL", host, Principal("User", user))


@given(
    first=st.lists(BINDINGS, max_size=12),
    second=st.lists(BINDINGS, max_size=6),
    gone=st.sampled_from(list(PatternType)),
    gone_name=st.none() | NAMES,
    questions=st.lists(QUESTIONS, min_size=1, max_size=12),
)
def test_answers_are_those_of_a_slow_reading(
    first: list[AclBinding],
    second: list[AclBinding],
    gone: PatternType,
    gone_name: str | None,
    questions: list[tuple[str, str, Operation, ResourceType, str]],
) -> None:
    fs = MemoryFileSystem(ManualClock())
    fs.make_directory("/a")
    table = AclTable(fs, [DirectoryHealth("/a")])
    authorizer = AclAuthorizer(table, SecuritySettings(super_users="User:root"))

    def check() -> None:
        for user, host, operation, type, name in [*questions, *questions]:
            answer = authorizer.is_allowed(_connection(user, host), operation, type, name)
            assert answer is _model(list(table.bindings), user, host, operation, type, name)
            if answer and user != "root":
                # What is allowed by name is allowed somewhere, but for a denial of everything.
                somewhere = authorizer.is_allowed_somewhere(
                    _connection(user, host), operation, type
                )
                assert somewhere

    table.add(first)
    check()
    table.add(second)
    check()
    table.remove(
        [AclFilter(ResourceType.ANY, gone_name, gone, None, None, Operation.ANY, Permission.ANY)],
        bytes_max=1 << 20,
    )
    check()
    again = AclTable(fs, [DirectoryHealth("/a")])
    again.load()
    assert again.bindings == table.bindings
