"""What groups of every kind have in common, and where they are found.

Invariant  a name belongs to one group; a group that no longer has anything to remember is removed.
Threads    the loop's alone.
"""

import asyncio
from collections.abc import Iterator
from enum import StrEnum
from typing import Protocol
from weakref import WeakValueDictionary

from varve.wire import ErrorCode, Message


class GroupKind(StrEnum):
    """By Kafka's names, as ListGroups tells them."""

    CLASSIC = "classic"
    CONSUMER = "consumer"


class Group(Protocol):
    """Some members and what they may do with the offsets of their group."""

    @property
    def id(self) -> str: ...

    @property
    def kind(self) -> GroupKind: ...

    @property
    def protocol_type(self) -> str:
        """`consumer`, or another that members brought along; empty where there never was one."""
        ...

    @property
    def state_name(self) -> str:
        """By Kafka's names: Empty, Stable and so on."""
        ...

    @property
    def is_empty(self) -> bool:
        """Whether it has no members."""
        ...

    @property
    def member_count(self) -> int: ...

    def is_subscribed_to(self, topic: str) -> bool: ...

    def check_commit(
        self,
        member_id: str,
        instance_id: str | None,
        epoch: int,
        *,
        version: int,
        is_transactional: bool,
    ) -> ErrorCode:
        """Whether a member may commit; `epoch` is its generation or its member epoch, `version`
        that of the request.
        """
        ...

    def check_fetch(self, member_id: str | None, epoch: int) -> ErrorCode:
        """Whether a member may ask for offsets; others say no id and an epoch below 0."""
        ...

    def expiry_base_ms(self, topic: str, commit_timestamp_ms: int) -> int | None:
        """From when on the retention of an offset runs; None while it is in use."""
        ...

    def tombstones(self) -> list[tuple[Message, Message | None]]:
        """Records that take the group out of the log, offsets aside."""
        ...

    def close(self) -> None:
        """The group was removed or replaced: nothing of it may happen any more."""
        ...


class Groups:
    """All groups by name."""

    def __init__(self) -> None:
        self._by_id: dict[str, Group] = {}
        self._lines: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def line(self, id: str) -> asyncio.Lock:
        """To be held by whoever writes a group of that name to the log because of what it was."""
        line = self._lines.get(id)
        if line is None:
            line = self._lines[id] = asyncio.Lock()
        return line

    def find(self, id: str) -> Group | None:
        return self._by_id.get(id)

    def put(self, group: Group) -> None:
        """Adds a group; one of the same name that was there before is closed."""
        before = self._by_id.get(group.id)
        if before is not None and before is not group:
            before.close()
        self._by_id[group.id] = group

    def take(self, group: Group) -> None:
        """Its name is free from now on; the group itself is for the caller to close."""
        if self._by_id.get(group.id) is group:
            del self._by_id[group.id]

    def remove(self, group: Group) -> None:
        """Closes a group, whose name is free from now on."""
        self.take(group)
        group.close()

    def snapshot(self) -> list[Group]:
        """As they are now, in any order; may be called in any thread."""
        return list(self._by_id.values())

    def __iter__(self) -> Iterator[Group]:
        """By name."""
        return iter([self._by_id[id] for id in sorted(self._by_id)])
