"""Users of PLAIN: from a file of hashes, from Kafka's own line of JAAS, never kept in clear."""

import pytest

from varve.foundation.errors import InvalidSetting
from varve.kafka_server.sasl_mechanisms import PlainUsers, hash_password, parse_jaas, parse_users

MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
HASH = hash_password("wonder land")


def test_users_of_a_file_prove_their_passwords() -> None:
    users = PlainUsers(parse_users(f"# people\n\nalice = {HASH}\n", "users"))
    assert len(users) == 1
    assert users.verify_password("alice", "wonder land")
    assert not users.verify_password("alice", "wonder")
    assert not users.verify_password("bob", "wonder land")


def test_a_hash_tells_no_password_and_is_another_each_time() -> None:
    assert "wonder" not in HASH
    assert hash_password("wonder land") != HASH


def test_users_of_both_sources_are_told_apart() -> None:
    users = PlainUsers({"alice": HASH}, {"bob": "builder"})
    assert users.is_slow
    assert users.verify_password("alice", "wonder land")
    assert users.verify_password("bob", "builder")
    assert not users.verify_password("alice", "builder")
    assert not users.verify_password("bob", "wonder land")


def test_passwords_in_clear_are_not_kept() -> None:
    users = PlainUsers(passwords={"bob": "builder"})
    assert not users.is_slow
    assert users.verify_password("bob", "builder")
    assert "builder" not in repr(vars(users))


def test_nobody_is_right_where_there_is_nobody() -> None:
    assert not PlainUsers().verify_password("", "")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            f'{MODULE} required username="admin" password="x" user_admin="x" user_alice="a b;c";',
            {"admin": "x", "alice": "a b;c"},
        ),
        (f"{MODULE} required user_bob='it''s' ;", None),
        (
            f'{MODULE}  required\n  user_a="say \\"hi\\""\n  user_b=bare;',
            {"a": 'say "hi"', "b": "bare"},
        ),
        (f"{MODULE} required;", {}),
        (f'{MODULE} required user_a="1"', {"a": "1"}),
        (f'{MODULE} required user_a="1" nonsense;', None),
        ('org.example.Other required user_a="1";', None),
        ("", None),
    ],
)
def test_kafkas_line_is_read(text: str, expected: dict[str, str] | None) -> None:
    if expected is None:
        with pytest.raises(InvalidSetting, match="the setting"):
            parse_jaas(text, "the setting")
    else:
        assert parse_jaas(text, "the setting") == expected


def test_a_message_about_the_line_tells_no_password() -> None:
    with pytest.raises(InvalidSetting) as caught:
        parse_jaas(f'{MODULE} required user_a="sesame" user_b=="sesame";', "the setting")
    assert "sesame" not in str(caught.value)


@pytest.mark.parametrize(
    "line",
    [
        "alice",
        "alice=",
        "=x",
        "alice=clear text",
        "alice=scrypt$3$c2FsdA==$c2FsdA==",
        f"alice={HASH}\nalice={HASH}",
        f"alice={HASH.replace('16384', '1048576')}",
    ],
    ids=["no value", "empty", "no name", "clear text", "bad cost", "twice", "high cost"],
)
def test_a_file_that_cannot_be_read_is_refused(line: str) -> None:
    with pytest.raises(InvalidSetting):
        parse_users(line, "users")
