"""Bindings are valid, filters find what Kafka's find, and what nobody gave is not allowed."""

import logging
from dataclasses import replace

import pytest

from varve.broker.request import ANONYMOUS, ConnectionContext, Operation, Principal, ResourceType
from varve.broker.security import acls
from varve.broker.security.acls import (
    ANY_PRINCIPAL,
    AclAuthorizer,
    AclBinding,
    AclFilter,
    AclTable,
    PatternType,
    Permission,
    is_covered,
)
from varve.broker.settings import SecuritySettings
from varve.commit_log.health import DirectoryHealth
from varve.disk import MemoryFileSystem
from varve.foundation.clock import ManualClock
from varve.foundation.errors import InvalidRequest, InvalidSetting

READ_ORDERS = AclBinding(
    ResourceType.TOPIC,
    "orders",
    PatternType.LITERAL,
    "User:alice",
    "*",
    Operation.READ,
    Permission.ALLOW,
)
ALL = AclFilter(ResourceType.ANY, None, PatternType.ANY, None, None, Operation.ANY, Permission.ANY)


@pytest.mark.parametrize(
    "wrong",
    [
        {"type": ResourceType.ANY},
        {"name": ""},
        {"pattern": PatternType.ANY},
        {"pattern": PatternType.MATCH},
        {"principal": "alice"},
        {"principal": "User:"},
        {"principal": ":alice"},
        {"host": ""},
        {"operation": Operation.ANY},
        {"permission": Permission.ANY},
        {"type": ResourceType.CLUSTER, "name": "another"},
        {"name": "x" * 5_000},
    ],
)
def test_a_binding_that_means_nothing_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest):
        replace(READ_ORDERS, **wrong)  # type: ignore[arg-type]  # the wrong values are the point


@pytest.mark.parametrize(
    ("pattern", "name", "wanted", "is_found"),
    [
        (PatternType.LITERAL, "orders", "orders", True),
        (PatternType.LITERAL, "*", "orders", False),
        (PatternType.MATCH, "*", "orders", True),
        (PatternType.MATCH, "orders", "orders", True),
        (PatternType.MATCH, "order", "orders", False),
        (PatternType.ANY, "orders", "orders", True),
        (PatternType.ANY, "*", "orders", False),
    ],
)
def test_filters_look_at_literal_names(
    pattern: PatternType, name: str, wanted: str, is_found: bool
) -> None:
    binding = replace(READ_ORDERS, name=name)
    assert replace(ALL, pattern=pattern, name=wanted).matches(binding) is is_found


@pytest.mark.parametrize(
    ("pattern", "wanted", "is_found"),
    [
        (PatternType.LITERAL, "ord", False),
        (PatternType.PREFIXED, "ord", True),
        (PatternType.PREFIXED, "orders", False),
        (PatternType.MATCH, "orders", True),
        (PatternType.MATCH, "or", False),
        (PatternType.ANY, "ord", True),
        (PatternType.PREFIXED, None, True),
        (PatternType.LITERAL, None, False),
    ],
)
def test_filters_look_at_prefixes(pattern: PatternType, wanted: str | None, is_found: bool) -> None:
    binding = replace(READ_ORDERS, pattern=PatternType.PREFIXED, name="ord")
    assert replace(ALL, pattern=pattern, name=wanted).matches(binding) is is_found


@pytest.mark.parametrize(
    "other",
    [
        {"type": ResourceType.GROUP},
        {"principal": "User:bob"},
        {"host": "10.0.0.1"},
        {"operation": Operation.WRITE},
        {"permission": Permission.DENY},
    ],
)
def test_each_part_of_a_filter_counts(other: dict[str, object]) -> None:
    assert ALL.matches(READ_ORDERS)
    assert not replace(ALL, **other).matches(READ_ORDERS)  # type: ignore[arg-type]  # one part each


TOPIC = ResourceType.TOPIC


def test_rights_imply_to_describe_but_denials_do_not() -> None:
    allow, deny = Permission.ALLOW, Permission.DENY
    for operation in (Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER):
        assert is_covered(Operation.DESCRIBE, operation, allow)
        assert not is_covered(Operation.DESCRIBE, operation, deny)
    assert is_covered(Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS, allow)
    assert not is_covered(Operation.DESCRIBE, Operation.CREATE, allow)
    assert not is_covered(Operation.READ, Operation.DESCRIBE, allow)


def _table(*bindings: AclBinding, settings: SecuritySettings | None = None) -> AclTable:
    fs = MemoryFileSystem(ManualClock())
    fs.make_directory("/a")
    table = AclTable(fs, [DirectoryHealth("/a")], settings or SecuritySettings())
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


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize(
    "denial",
    [
        _right("orders", Permission.DENY),
        _right("*", Permission.DENY),
        _right("ord", Permission.DENY, pattern=PatternType.PREFIXED),
        _right("orders", Permission.DENY, principal=ANY_PRINCIPAL, operation=Operation.ALL),
    ],
)
def test_a_denial_wins_over_every_right(denial: AclBinding, order: int) -> None:
    bindings = [_right("orders"), _right("*"), denial][::order]
    authorizer = AclAuthorizer(_table(*bindings), SecuritySettings())
    assert not authorizer.is_allowed(_asks(), Operation.WRITE, TOPIC, "orders")


def test_a_right_taken_away_is_gone_at_the_next_question() -> None:
    table = _table(_right("orders"))
    authorizer = AclAuthorizer(table, SecuritySettings())
    assert authorizer.is_allowed(_asks(), Operation.WRITE, TOPIC, "orders")
    table.remove([ALL], bytes_max=1 << 20)
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


def _filter_of(name: str | None, principal: str | None = None) -> AclFilter:
    return replace(ALL, name=name, principal=principal)


def test_filters_that_match_too_much_or_take_too_long_remove_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(acls, "_COMPARISONS_MAX", 10_000)
    rights = [replace(READ_ORDERS, name=f"topic-{number}") for number in range(2_000)]
    table = _table(*rights)
    with pytest.raises(InvalidRequest, match=r"varve\.response\.max\.bytes"):
        table.remove([ALL] * 10_000, bytes_max=1 << 20)
    with pytest.raises(InvalidRequest, match="compared"):
        table.remove([_filter_of(None, f"User:{number}") for number in range(10_000)], bytes_max=1)
    named = [_filter_of(one.name) for one in rights]
    assert table.remove([*named, named[0]], bytes_max=1 << 20) == [
        [one] for one in (*rights, rights[0])
    ]
    assert not table.bindings


def test_there_are_no_more_acls_than_the_setting_allows() -> None:
    table = _table(READ_ORDERS, settings=SecuritySettings(acl_count_max=1))
    table.add([READ_ORDERS])
    with pytest.raises(InvalidRequest, match=r"varve\.acls\.max\.count = 1"):
        table.add([replace(READ_ORDERS, name="others")])
    assert table.bindings == (READ_ORDERS,)


def test_where_everybody_may_use_what_has_no_acl_all_names_are_not_compared_with_all_acls() -> None:
    rights = [
        replace(READ_ORDERS, name=f"t{number}-", pattern=PatternType.PREFIXED)
        for number in range(5_000)
    ]
    settings = SecuritySettings(allow_everyone_if_no_acl_found=True)
    authorizer = AclAuthorizer(_table(*rights), settings)
    for number in range(5_000):  # with comparisons of all, this takes long
        assert authorizer.is_allowed(_asks(), Operation.WRITE, TOPIC, f"other-{number}")
    assert not authorizer.is_allowed(_asks(), Operation.WRITE, TOPIC, "t5-orders")
