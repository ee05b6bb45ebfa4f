"""What is allowed when nobody said so, and to whom everything is."""

import logging

import pytest

from varve.broker.request import ANONYMOUS, ConnectionContext, Operation, Principal, ResourceType
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
from varve.foundation.errors import InvalidSetting

TOPIC = ResourceType.TOPIC


def _table(*bindings: AclBinding) -> AclTable:
    fs = MemoryFileSystem(ManualClock())
    fs.make_directory("/a")
    table = AclTable(fs, [DirectoryHealth("/a")])
    table.add(bindings)
    return table


def _right(
    name: str,
    permission: Permission = Permission.ALLOW,
    *,
    pattern: PatternType = PatternType.LITERAL,
    principal: str = "User:alice",
    operation: Operation = Operation.WRITE,
) -> AclBinding:
    return AclBinding(TOPIC, name, pattern, principal, "*", operation, permission)


def _asks(name: str = "alice", kind: str = "User") -> ConnectionContext:
    principal = ANONYMOUS if name == "ANONYMOUS" else Principal(kind, name)
    return ConnectionContext(1, "SASL", "10.0.0.9", principal)


def test_super_users_may_do_everything_even_what_is_denied() -> None:
    table = _table(_right("*", Permission.DENY, principal=ANY_PRINCIPAL, operation=Operation.ALL))
    settings = SecuritySettings(super_users="User:root; User:CN=admin,O=x")
    authorizer = AclAuthorizer(table, settings)
    for name in ("root", "CN=admin,O=x"):
        assert authorizer.is_allowed(_asks(name), Operation.DELETE, TOPIC, "orders")
        assert authorizer.is_allowed_somewhere(_asks(name), Operation.WRITE, TOPIC)
    assert not authorizer.is_allowed(_asks("alice"), Operation.DELETE, TOPIC, "orders")
    assert not authorizer.is_allowed(_asks("root", "Group"), Operation.DELETE, TOPIC, "orders")


def test_a_super_user_without_a_type_is_refused() -> None:
    with pytest.raises(InvalidSetting, match=r"super\.users"):
        SecuritySettings(super_users="root")


def test_everybody_may_use_what_no_right_matches_resource_where_the_settings_say_so() -> None:
    table = _table(_right("orders"))
    authorizer = AclAuthorizer(table, SecuritySettings(allow_everyone_if_no_acl_found=True))
    assert authorizer.is_allowed(_asks("bob"), Operation.WRITE, TOPIC, "payments")
    assert not authorizer.is_allowed(_asks("bob"), Operation.WRITE, TOPIC, "orders")
    assert authorizer.is_allowed(_asks("alice"), Operation.WRITE, TOPIC, "orders")


def test_a_right_for_all_users_is_also_for_those_who_did_not_log_in() -> None:
    authorizer = AclAuthorizer(
        _table(_right("orders", principal=ANY_PRINCIPAL)), SecuritySettings()
    )
    assert authorizer.is_allowed(_asks("ANONYMOUS"), Operation.WRITE, TOPIC, "orders")


@pytest.mark.parametrize(
    ("rights", "is_allowed"),
    [
        ([_right("a")], True),
        ([_right("a"), _right("a", Permission.DENY)], False),
        ([_right("a"), _right("b", Permission.DENY)], True),
        ([_right("ab"), _right("a", Permission.DENY, pattern=PatternType.PREFIXED)], False),
        (
            [
                _right("ab", pattern=PatternType.PREFIXED),
                _right("a", Permission.DENY, pattern=PatternType.PREFIXED),
            ],
            False,
        ),
        (
            [
                _right("a", pattern=PatternType.PREFIXED),
                _right("ab", Permission.DENY, pattern=PatternType.PREFIXED),
            ],
            True,
        ),
        ([_right("*"), _right("a", Permission.DENY, pattern=PatternType.PREFIXED)], True),
        ([_right("*"), _right("*", Permission.DENY)], False),
        ([_right("a", operation=Operation.READ)], False),
    ],
)
def test_a_right_on_some_resource_counts_unless_it_is_denied_as_a_whole(
    rights: list[AclBinding], is_allowed: bool
) -> None:
    authorizer = AclAuthorizer(_table(*rights), SecuritySettings())
    assert authorizer.is_allowed_somewhere(_asks(), Operation.WRITE, TOPIC) is is_allowed


def test_a_right_taken_away_is_gone_at_the_next_question() -> None:
    table = _table(_right("orders"))
    authorizer = AclAuthorizer(table, SecuritySettings())
    assert authorizer.is_allowed(_asks(), Operation.WRITE, TOPIC, "orders")
    kind, any_pattern = ResourceType.ANY, PatternType.ANY
    table.remove([AclFilter(kind, None, any_pattern, None, None, Operation.ANY, Permission.ANY)])
    assert not authorizer.is_allowed(_asks(), Operation.WRITE, TOPIC, "orders")


def test_a_denial_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    authorizer = AclAuthorizer(_table(), SecuritySettings())
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            authorizer.is_allowed(_asks(), Operation.WRITE, TOPIC, "orders")
    assert [one.message for one in caplog.records] == ["denied"]


def test_questions_without_end_are_not_remembered_without_end() -> None:
    authorizer = AclAuthorizer(
        _table(_right("t", pattern=PatternType.PREFIXED)), SecuritySettings()
    )
    for number in range(20_000):
        assert authorizer.is_allowed(_asks(), Operation.WRITE, TOPIC, f"t{number}")
    assert len(authorizer._cache.answers) <= 16_384
