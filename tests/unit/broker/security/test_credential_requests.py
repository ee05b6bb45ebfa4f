"""DescribeUserScramCredentials and AlterUserScramCredentials as admin clients use them."""

from typing import Any

from tests.support.broker_kit import BrokerKit
from varve.foundation.scram import ScramMechanism, salted_password
from varve.wire import ErrorCode
from varve.wire.messages.security import (
    AlterUserScramCredentialsRequest,
    DescribeUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
    UserName,
)

SALTED = salted_password(ScramMechanism.SCRAM_SHA_256, "secret", salt=b"salt", iterations=4_096)


def _give(user: str = "alice", **changes: Any) -> ScramCredentialUpsertion:
    told: dict[str, Any] = {
        "name": user,
        "mechanism": 1,
        "iterations": 4_096,
        "salt": b"salt",
        "salted_password": SALTED,
    }
    return ScramCredentialUpsertion(**told | changes)


def _codes(answer: Any) -> dict[str, int]:
    return {one.user: one.error_code for one in answer.results}


def test_credentials_are_given_shown_and_taken_away(kit: BrokerKit) -> None:
    answer = kit.ask(
        AlterUserScramCredentialsRequest(
            upsertions=[
                _give(),
                _give(mechanism=2, iterations=8_192, salted_password=b"x" * 64),
                _give("bob"),
            ]
        )
    )
    assert _codes(answer) == {"alice": 0, "bob": 0}
    shown = kit.ask(DescribeUserScramCredentialsRequest(users=None))
    infos = {
        one.user: [(info.mechanism, info.iterations) for info in one.credential_infos]
        for one in shown.results
    }
    assert infos == {"alice": [(1, 4_096), (2, 8_192)], "bob": [(1, 4_096)]}
    deletions = [ScramCredentialDeletion("alice", 1), ScramCredentialDeletion("carol", 1)]
    answer = kit.ask(AlterUserScramCredentialsRequest(deletions=deletions))
    assert _codes(answer) == {"alice": 0, "carol": ErrorCode.RESOURCE_NOT_FOUND}
    kit.restart(is_crash=True)
    assert set(kit.broker.credentials.users["alice"]) == {ScramMechanism.SCRAM_SHA_512}
    assert set(kit.broker.credentials.users) == {"alice", "bob"}


def test_users_are_described_by_name(kit: BrokerKit) -> None:
    kit.ask(AlterUserScramCredentialsRequest(upsertions=[_give()]))
    names = [UserName(one) for one in ("alice", "bob", "carol", "carol")]
    shown = kit.ask(DescribeUserScramCredentialsRequest(users=names))
    assert _codes(shown) == {
        "alice": 0,
        "bob": ErrorCode.RESOURCE_NOT_FOUND,
        "carol": ErrorCode.DUPLICATE_RESOURCE,
    }
    everybody = kit.ask(DescribeUserScramCredentialsRequest(users=[]))
    assert _codes(everybody) == {"alice": 0}


def test_a_salted_password_of_any_length_is_taken_as_kafka_takes_it(kit: BrokerKit) -> None:
    answer = kit.ask(
        AlterUserScramCredentialsRequest(
            upsertions=[_give("short", salted_password=b"x"), _give("odd", mechanism=2)]
        )
    )
    assert _codes(answer) == {"short": 0, "odd": 0}
    assert set(kit.broker.credentials.users) == {"short", "odd"}


def test_what_is_no_credential_is_refused_and_others_are_given(kit: BrokerKit) -> None:
    bad = ErrorCode.UNACCEPTABLE_CREDENTIAL
    answer = kit.ask(
        AlterUserScramCredentialsRequest(
            upsertions=[
                _give("", iterations=4_096),
                _give("few", iterations=4_095),
                _give("many", iterations=16_385),
                _give("no salt", salt=b""),
                _give("long salt", salt=b"x" * 1_025),
                _give("no password", salted_password=b""),
                _give("long password", salted_password=b"x" * 1_025),
                _give("unknown", mechanism=3),
                _give("twice"),
                _give("twice"),
                _give("half"),
                _give("half", mechanism=2, salt=b""),
                _give("good"),
            ]
        )
    )
    assert _codes(answer) == {
        "": bad,
        "few": bad,
        "many": bad,
        "no salt": bad,
        "long salt": bad,
        "no password": bad,
        "long password": bad,
        "unknown": ErrorCode.UNSUPPORTED_SASL_MECHANISM,
        "twice": ErrorCode.DUPLICATE_RESOURCE,
        "half": bad,
        "good": 0,
    }
    assert set(kit.broker.credentials.users) == {"good"}
