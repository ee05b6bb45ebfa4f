"""Bindings are valid, and filters find what Kafka's find."""

from dataclasses import replace

import pytest

from varve.broker.request import Operation, ResourceType
from varve.broker.security.acls import AclBinding, AclFilter, PatternType, Permission
from varve.foundation.errors import InvalidRequest

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
