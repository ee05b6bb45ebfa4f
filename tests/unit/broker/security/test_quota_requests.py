"""DescribeClientQuotas and AlterClientQuotas as admin clients use them."""

from typing import Any

import pytest

from tests.support.broker_kit import BrokerKit
from varve.broker.security.requests import MatchType
from varve.wire import ErrorCode
from varve.wire.messages.security import (
    AlterClientQuotasRequest,
    AlteredQuotaEntry,
    ComponentData,
    DescribeClientQuotasRequest,
    EntityData,
    OpData,
)


def _entry(entity: dict[str, str | None], **values: float | None) -> AlteredQuotaEntry:
    return AlteredQuotaEntry(
        entity=[EntityData(type, name) for type, name in entity.items()],
        ops=[
            OpData(key=key, value=value or 0.0, remove=value is None)
            for key, value in values.items()
        ],
    )


def _shown(answer: Any) -> dict[tuple[tuple[str, str | None], ...], dict[str, float]]:
    return {
        tuple((one.entity_type, one.entity_name) for one in entry.entity): {
            one.key: one.value for one in entry.values
        }
        for entry in answer.entries
    }


ALICE, BOTH = (("user", "alice"),), (("client-id", "app"), ("user", "alice"))
ANY_USER, APP = (("user", None),), (("client-id", "app"),)
ENTRIES = [_entry(dict(one), producer_byte_rate=100.0) for one in (ALICE, BOTH, ANY_USER, APP)]


@pytest.mark.parametrize("version", [0, 1])
def test_quotas_are_given_shown_and_taken_away(kit: BrokerKit, version: int) -> None:
    entries = [_entry({"user": "alice"}, producer_byte_rate=10.0, request_percentage=1.5)]
    answer = kit.ask(AlterClientQuotasRequest(entries=entries), version=version)
    assert [one.error_code for one in answer.entries] == [0]
    entries = [_entry({"user": "alice"}, producer_byte_rate=None, consumer_byte_rate=20.0)]
    kit.ask(AlterClientQuotasRequest(entries=entries), version=version)
    kit.restart(is_crash=True)
    shown = kit.ask(DescribeClientQuotasRequest(), version=version)
    expected = {"request_percentage": 1.5, "consumer_byte_rate": 20.0}
    assert _shown(shown) == {ALICE: expected}


@pytest.mark.parametrize(
    ("components", "strict", "expected"),
    [
        ([], False, {ALICE, BOTH, ANY_USER, APP}),
        ([("user", MatchType.EXACT, "alice")], False, {ALICE, BOTH}),
        ([("user", MatchType.EXACT, "alice")], True, {ALICE}),
        ([("user", MatchType.DEFAULT, None)], True, {ANY_USER}),
        ([("user", MatchType.SPECIFIED, None)], True, {ALICE, ANY_USER}),
        ([("user", MatchType.SPECIFIED, None)], False, {ALICE, ANY_USER, BOTH}),
        ([("client-id", MatchType.EXACT, "app")], True, {APP}),
        (
            [("user", MatchType.SPECIFIED, None), ("client-id", MatchType.EXACT, "app")],
            True,
            {BOTH},
        ),
        ([("client-id", MatchType.EXACT, "other")], False, set()),
    ],
)
def test_quotas_are_found_by_parts_of_their_entities(
    kit: BrokerKit,
    components: list[tuple[str, MatchType, str | None]],
    strict: bool,
    expected: set[Any],
) -> None:
    kit.ask(AlterClientQuotasRequest(entries=ENTRIES))
    asked = [ComponentData(*one) for one in components]
    answer = kit.ask(DescribeClientQuotasRequest(components=asked, strict=strict))
    assert set(_shown(answer)) == expected


@pytest.mark.parametrize(
    "entry",
    [
        _entry({}, producer_byte_rate=1.0),
        _entry({"ip": "10.0.0.1"}, connection_creation_rate=1.0),
        _entry({"user": "a"}, controller_mutation_rate=1.0),
        _entry({"user": "a"}, nonsense=1.0),
        _entry({"user": "a"}, producer_byte_rate=-1.0),
        _entry({"user": "a"}, producer_byte_rate=1.5),
        _entry({"user": "a"}, request_percentage=float("nan")),
        _entry({"user": ""}, producer_byte_rate=1.0),
        AlteredQuotaEntry(entity=[EntityData("user", "a"), EntityData("user", "b")]),
        AlteredQuotaEntry([EntityData("user", "a")], [OpData("request_percentage", 1.0)] * 2),
    ],
)
def test_what_is_not_enforced_is_not_taken(kit: BrokerKit, entry: AlteredQuotaEntry) -> None:
    good = _entry({"user": "good"}, producer_byte_rate=1.0)
    answer = kit.ask(AlterClientQuotasRequest(entries=[entry, good]))
    codes = [one.error_code for one in answer.entries]
    assert codes == [ErrorCode.INVALID_REQUEST, 0]
    assert answer.entries[0].error_message
    assert set(_shown(kit.ask(DescribeClientQuotasRequest()))) == {(("user", "good"),)}


def test_a_trial_changes_nothing(kit: BrokerKit) -> None:
    answer = kit.ask(AlterClientQuotasRequest(entries=ENTRIES, validate_only=True))
    assert {one.error_code for one in answer.entries} == {0}
    assert kit.ask(DescribeClientQuotasRequest()).entries == []


@pytest.mark.parametrize(
    "components",
    [
        [ComponentData("ip", MatchType.DEFAULT, None)],
        [ComponentData("user", 7, None)],
        [ComponentData("user", MatchType.EXACT, None)],
        [ComponentData("user", MatchType.DEFAULT, "x")],
        [ComponentData("user", MatchType.DEFAULT, None)] * 2,
    ],
)
def test_a_filter_without_meaning_is_refused(
    kit: BrokerKit, components: list[ComponentData]
) -> None:
    answer = kit.ask(DescribeClientQuotasRequest(components=components))
    assert (answer.error_code, answer.entries) == (ErrorCode.INVALID_REQUEST, None)
