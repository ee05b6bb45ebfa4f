"""A crash while rights, credentials or quotas change leaves them as some answer said (G3)."""

from collections.abc import Callable

import pytest

from tests.support.crash_images import crash_images, named, record
from varve.broker.request import Operation, ResourceType
from varve.broker.security.acls import (
    ACLS_FILE,
    AclBinding,
    AclFilter,
    AclTable,
    PatternType,
    Permission,
)
from varve.broker.security.credentials import CREDENTIALS_FILE, ScramCredentials, make_credential
from varve.broker.security.quotas import QUOTAS_FILE, EntityType, QuotaEntity, QuotaKind, QuotaTable
from varve.commit_log.health import DirectoryHealth
from varve.foundation.clock import ManualClock
from varve.foundation.errors import Corrupt, DirectoryOffline, DiskFull, Unavailable
from varve.foundation.scram import ScramMechanism
from varve.testing.faulty_disk import FaultyFileSystem

PATHS = ["/a", "/b"]
CREDENTIAL = make_credential("secret", ScramMechanism.SCRAM_SHA_256, iterations=4_096)
Table = AclTable | ScramCredentials | QuotaTable


def _directories() -> list[DirectoryHealth]:
    return [DirectoryHealth(path) for path in PATHS]


def _disk(clock: ManualClock) -> FaultyFileSystem:
    fs = FaultyFileSystem(clock)
    for path in PATHS:
        fs.make_directory(path)
        fs.sync_directory(path)
    fs.sync_directory("/")
    return fs


def _right(name: str) -> AclBinding:
    kind, pattern, allow = ResourceType.TOPIC, PatternType.LITERAL, Permission.ALLOW
    return AclBinding(kind, name, pattern, "User:alice", "*", Operation.READ, allow)


def _all_of(name: str) -> AclFilter:
    return AclFilter(
        ResourceType.ANY, name, PatternType.ANY, None, None, Operation.ANY, Permission.ANY
    )


def _quota(user: str) -> QuotaEntity:
    return QuotaEntity.from_names([(EntityType.USER, user)])


def _change(table: Table, step: int) -> None:
    """One of four changes: two are added, one of them goes, a third comes."""
    name = ("one", "two", "one", "three")[step]
    is_removal = step == 2
    if isinstance(table, AclTable):
        if is_removal:
            table.remove([_all_of(name)], bytes_max=1 << 20)
        else:
            table.add([_right(name)])
    elif isinstance(table, ScramCredentials):
        table.alter([(name, ScramMechanism.SCRAM_SHA_256, None if is_removal else CREDENTIAL)])
    else:
        table.alter([(_quota(name), {QuotaKind.PRODUCE: None if is_removal else 1_000.0})])


STATES = [set(), {"one"}, {"one", "two"}, {"two"}, {"two", "three"}]


def _names(table: Table) -> set[str | None]:
    if isinstance(table, AclTable):
        return {one.name for one in table.bindings}
    if isinstance(table, ScramCredentials):
        return set(table.users)
    return {entity.names[0][1] for entity in table.quotas}


MAKERS: list[tuple[Callable[..., Table], str]] = [
    (AclTable, ACLS_FILE),
    (ScramCredentials, CREDENTIALS_FILE),
    (QuotaTable, QUOTAS_FILE),
]
EVERY_TABLE = pytest.mark.parametrize(("make", "file"), MAKERS)


@EVERY_TABLE
def test_a_table_is_what_some_answer_said_after_a_crash_at_any_step(
    make: Callable[..., Table], file: str
) -> None:
    fs = _disk(ManualClock())
    answered: list[int] = []

    def change_all() -> None:
        table = make(fs, _directories())
        for step in range(4):
            _change(table, step)
            answered.append(step)

    for image in crash_images(record(change_all, lambda: len(answered), disk=fs)):
        with named(image):
            found = make(image.disk, _directories())
            found.load()
            assert _names(found) in STATES[image.state : image.state + 2]


@EVERY_TABLE
def test_a_full_disk_refuses_a_change_which_can_be_made_later(
    make: Callable[..., Table], file: str
) -> None:
    fs = _disk(ManualClock())
    table = make(fs, _directories())
    _change(table, 0)
    fs.full_at(fs.used_bytes() + 10)
    with pytest.raises(DiskFull):
        _change(table, 1)
    assert _names(table) == {"one"}
    fs.full_at(None)
    _change(table, 1)
    again = make(fs, _directories())
    again.load()
    assert _names(again) == {"one", "two"}


@EVERY_TABLE
def test_a_directory_that_fails_leaves_the_other_with_the_table(
    make: Callable[..., Table], file: str
) -> None:
    fs = _disk(ManualClock())
    directories = _directories()
    table = make(fs, directories)
    _change(table, 0)
    fs.fail_under("/b", OSError(5, "Input/output error"))
    _change(table, 1)
    assert isinstance(directories[1].failure, DirectoryOffline)
    assert directories[0].failure is None
    fs.fail_under("/a", OSError(5, "Input/output error"))
    with pytest.raises(DirectoryOffline):
        _change(table, 2)
    assert _names(table) == {"one", "two"}


@EVERY_TABLE
def test_a_directory_that_comes_back_does_not_bring_an_older_table(
    make: Callable[..., Table], file: str
) -> None:
    fs = _disk(ManualClock())
    table = make(fs, _directories())
    _change(table, 0)
    older = fs.read(f"/a/{file}")
    _change(table, 1)
    with fs.open_writable(f"/a/{file}") as opened:
        opened.write_at(0, older)
        opened.truncate(len(older))
    again = make(fs, _directories())
    again.load()
    assert _names(again) == {"one", "two"}


@EVERY_TABLE
@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"{",
        b'{"format": 1}',
        b'{"format": 1, "version": "2"}',
        b'{"format": 1, "version": true}',
        b'{"format": 2, "version": 1}',
        b'{"format": 1, "version": 2, "acls": [1], "users": [1], "quotas": [1], "secret": ""}',
        b'{"format": 1, "version": 2, "acls": [{}], "users": {"a": {"SCRAM_SHA_256": {}}}, '
        b'"quotas": [{}], "secret": ""}',
    ],
)
def test_a_table_that_cannot_be_understood_is_not_taken_for_an_empty_one(
    make: Callable[..., Table], file: str, content: bytes
) -> None:
    fs = _disk(ManualClock())
    table = make(fs, _directories())
    _change(table, 0)
    with fs.open_writable(f"/b/{file}") as opened:
        opened.truncate(0)
        opened.write_at(0, content.replace(b'"version": 2', b'"version": 9'))
    with pytest.raises(Corrupt, match=f"/b/{file}|/a/{file}"):
        make(fs, _directories()).load()


@EVERY_TABLE
def test_a_table_that_cannot_be_read_is_not_taken_for_an_empty_one(
    make: Callable[..., Table], file: str
) -> None:
    fs = _disk(ManualClock())
    _change(make(fs, _directories()), 0)
    fs.fail_under("/a", PermissionError(13, "Permission denied"))
    with pytest.raises(Unavailable, match="Permission denied"):
        make(fs, _directories()).load()
