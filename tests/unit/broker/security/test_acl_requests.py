"""DescribeAcls, CreateAcls and DeleteAcls as admin clients use them, in every version."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.broker_kit import BrokerKit
from varve.broker.request import Operation, Principal, ResourceType
from varve.broker.security.acls import PatternType, Permission
from varve.broker.settings import SecuritySettings
from varve.wire import ErrorCode
from varve.wire.messages.security import (
    AclBindingFilter,
    AclCreation,
    CreateAclsRequest,
    DeleteAclsRequest,
    DescribeAclsRequest,
)

ROOT = Principal("User", "root")
ALICE = Principal("User", "alice")
ON = SecuritySettings(authorizer_enable=True, super_users="User:root")


@pytest.fixture
def kit() -> Iterator[BrokerKit]:
    with BrokerKit(security=ON) as kit:
        yield kit


def _creation(**changes: Any) -> AclCreation:
    told: dict[str, Any] = {
        "resource_type": ResourceType.TOPIC,
        "resource_name": "orders",
        "resource_pattern_type": PatternType.LITERAL,
        "principal": "User:alice",
        "host": "*",
        "operation": Operation.READ,
        "permission_type": Permission.ALLOW,
    }
    return AclCreation(**told | changes)


def _everything(**changes: Any) -> dict[str, Any]:
    told: dict[str, Any] = {
        "resource_type_filter": ResourceType.ANY,
        "resource_name_filter": None,
        "pattern_type_filter": PatternType.ANY,
        "principal_filter": None,
        "host_filter": None,
        "operation": Operation.ANY,
        "permission_type": Permission.ANY,
    }
    return told | changes


@pytest.mark.parametrize("version", [1, 2, 3])
def test_rights_are_given_shown_and_taken_away(kit: BrokerKit, version: int) -> None:
    def ask(request: Any) -> Any:
        return kit.ask(request, version=version, principal=ROOT)

    creations = [
        _creation(),
        _creation(operation=Operation.WRITE, permission_type=Permission.DENY),
        _creation(resource_name="pay", resource_pattern_type=PatternType.PREFIXED),
    ]
    made = ask(CreateAclsRequest(creations=creations))
    assert [one.error_code for one in made.results] == [0, 0, 0]
    assert [one.error_message for one in made.results] == [None, None, None]
    shown = ask(DescribeAclsRequest(**_everything(resource_name_filter="orders")))
    assert (shown.error_code, shown.error_message) == (0, None)
    (resource,) = shown.resources
    assert (resource.resource_name, resource.pattern_type) == ("orders", PatternType.LITERAL)
    assert [(one.operation, one.permission_type) for one in resource.acls] == [(3, 3), (4, 2)]
    payments = {"resource_name_filter": "payments", "pattern_type_filter": PatternType.MATCH}
    filters = [
        AclBindingFilter(**_everything(operation=Operation.WRITE)),
        AclBindingFilter(**_everything(**payments)),
        AclBindingFilter(**_everything(principal_filter="User:nobody")),
    ]
    gone = ask(DeleteAclsRequest(filters=filters))
    assert [one.error_code for one in gone.filter_results] == [0, 0, 0]
    found = [len(one.matching_acls) for one in gone.filter_results]
    assert found == [1, 1, 0]
    assert gone.filter_results[1].matching_acls[0].resource_name == "pay"
    assert len(kit.broker.acls.bindings) == 1
    kit.restart(is_crash=True)
    assert len(kit.broker.acls.bindings) == 1


def test_wrong_rights_do_not_keep_others_from_being_given(kit: BrokerKit) -> None:
    wrong = [
        _creation(resource_type=0),
        _creation(resource_pattern_type=77),
        _creation(principal="alice"),
        _creation(operation=99),
        _creation(permission_type=Permission.ANY),
    ]
    answer = kit.ask(CreateAclsRequest(creations=[*wrong, _creation()]), principal=ROOT)
    codes = [one.error_code for one in answer.results]
    assert codes == [ErrorCode.INVALID_REQUEST] * len(wrong) + [0]
    assert all(one.error_message for one in answer.results[:-1])
    assert len(kit.broker.acls.bindings) == 1


def test_filters_without_meaning_are_refused(kit: BrokerKit) -> None:
    shown = kit.ask(DescribeAclsRequest(**_everything(operation=99)), principal=ROOT)
    assert shown.error_code == ErrorCode.INVALID_REQUEST
    filters = [AclBindingFilter(**_everything(permission_type=0))]
    gone = kit.ask(DeleteAclsRequest(filters=filters), principal=ROOT)
    assert gone.filter_results[0].error_code == ErrorCode.INVALID_REQUEST


def test_who_may_alter_the_cluster_may_give_rights(kit: BrokerKit) -> None:
    on_cluster = _creation(
        resource_type=ResourceType.CLUSTER,
        resource_name="kafka-cluster",
        operation=Operation.ALTER,
    )
    kit.ask(CreateAclsRequest(creations=[on_cluster]), principal=ROOT)
    made = kit.ask(CreateAclsRequest(creations=[_creation()]), principal=ALICE)
    assert made.results[0].error_code == 0


def test_without_an_authorizer_security_is_disabled() -> None:
    with BrokerKit() as kit:
        off = ErrorCode.SECURITY_DISABLED
        assert kit.ask(DescribeAclsRequest(**_everything())).error_code == off
        made = kit.ask(CreateAclsRequest(creations=[_creation(), _creation()]))
        assert [one.error_code for one in made.results] == [off, off]
        gone = kit.ask(DeleteAclsRequest(filters=[AclBindingFilter(**_everything())]))
        assert gone.filter_results[0].error_code == off


def test_kafkas_name_of_an_authorizer_switches_rights_on() -> None:
    kafkas = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
    with BrokerKit(security=SecuritySettings(authorizer_class_name=kafkas)) as kit:
        shown = kit.ask(DescribeAclsRequest(**_everything()))
        assert shown.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
