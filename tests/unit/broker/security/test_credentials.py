"""SCRAM's keys are those of the RFC, and strangers cannot be told from users."""

import base64
import json

import pytest

from varve.broker.security.credentials import (
    CREDENTIALS_FILE,
    ScramCredentials,
    add_credential,
    make_credential,
)
from varve.commit_log.health import DirectoryHealth
from varve.disk import MemoryFileSystem
from varve.foundation.clock import ManualClock
from varve.foundation.errors import InvalidRequest, Locked
from varve.foundation.scram import ScramMechanism, credential_of, salted_password

SHA_256, SHA_512 = ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512


def _fs() -> MemoryFileSystem:
    fs = MemoryFileSystem(ManualClock())
    fs.make_directory("/a")
    fs.make_directory("/b")
    return fs


def _table(fs: MemoryFileSystem) -> ScramCredentials:
    table = ScramCredentials(fs, [DirectoryHealth("/a"), DirectoryHealth("/b")])
    table.load()
    return table


def test_what_is_kept_tells_no_password() -> None:
    fs = _fs()
    table = _table(fs)
    table.alter([("alice", SHA_512, make_credential("open sesame", SHA_512))])
    kept = fs.read(f"/a/{CREDENTIALS_FILE}")
    assert b"open sesame" not in kept
    assert base64.b64encode(b"open sesame") not in kept
    assert fs.read(f"/b/{CREDENTIALS_FILE}") == kept
    assert _table(fs).users == table.users
    stored = json.loads(kept)["users"]["alice"]["SCRAM_SHA_512"]
    assert set(stored) == {"salt", "iterations", "stored_key", "server_key"}


def test_a_stranger_gets_the_same_salt_at_every_try_and_after_a_restart() -> None:
    fs = _fs()
    table = _table(fs)
    table.alter([("alice", SHA_256, make_credential("a", SHA_256, iterations=4_096))])
    first = table.fake_credential("mallory", SHA_256)
    assert table.fake_credential("mallory", SHA_256) == first
    assert _table(fs).fake_credential("mallory", SHA_256) == first
    assert table.fake_credential("eve", SHA_256).salt != first.salt
    assert table.fake_credential("mallory", SHA_512).salt != first.salt
    found = table.find("alice", SHA_256)
    assert found is not None
    assert (len(first.salt), first.iterations) == (len(found.salt), found.iterations)


def test_a_stranger_looks_like_most_users() -> None:
    table = _table(_fs())
    salted = salted_password(SHA_256, "x", salt=b"s" * 100, iterations=5_000)
    usual = credential_of(SHA_256, salted, salt=b"s" * 100, iterations=5_000)
    table.alter([(name, SHA_256, usual) for name in ("a", "b")])
    table.alter([("c", SHA_256, make_credential("x", SHA_256))])
    feigned = table.fake_credential("mallory", SHA_256)
    assert (len(feigned.salt), feigned.iterations) == (100, 5_000)


def test_the_first_credential_is_made_before_anybody_can_log_in() -> None:
    fs = MemoryFileSystem(ManualClock())
    add_credential(["/a", "/b"], fs=fs, user="admin", password="s", mechanism=SHA_256)
    add_credential(["/a", "/b"], fs=fs, user="admin", password="s", mechanism=SHA_512)
    assert set(_table(fs).users["admin"]) == {SHA_256, SHA_512}


def test_a_server_at_work_keeps_the_credentials_to_itself() -> None:
    fs = _fs()
    with fs.lock("/b/.lock"), pytest.raises(Locked, match="/b is in use"):
        add_credential(["/a", "/b"], fs=fs, user="admin", password="s", mechanism=SHA_256)
    assert not _table(fs).users
    add_credential(["/a", "/b"], fs=fs, user="admin", password="s", mechanism=SHA_256)


@pytest.mark.parametrize(
    ("user", "password", "iterations"),
    [("", "x", 4_096), ("a", "", 4_096), ("a", "x", 4_095), ("a", "x", 16_385)],
)
def test_what_is_no_credential_is_refused(user: str, password: str, iterations: int) -> None:
    with pytest.raises(InvalidRequest):
        add_credential(
            ["/a"],
            fs=_fs(),
            user=user,
            password=password,
            mechanism=SHA_256,
            iterations=iterations,
        )
