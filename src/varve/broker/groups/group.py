"""What groups of both kinds have in common, the table of groups, and the services they use.

Invariant  a group id belongs to one group; a group without members and offsets is removed.
Threads    the loop's.
"""

import asyncio
import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar
from weakref import WeakValueDictionary

from varve.broker.background import BackgroundTasks, Timers
from varve.broker.groups.records import GroupLog, Records
from varve.broker.settings import ConsumerGroupConfigs, GroupSettings
from varve.broker.stored_configs import StoredConfigs
from varve.foundation.clock import Clock
from varve.foundation.errors import StoreError
from varve.wire import ErrorCode
from varve.wire.errors import KafkaError, code_for


class GroupKind(StrEnum):
    """By Kafka's names, as ListGroups returns them."""

    CLASSIC = "classic"
    CONSUMER = "consumer"


@dataclass(slots=True)
class GroupServices:
    """What all groups of a broker share."""

    log: GroupLog
    clock: Clock
    timers: Timers
    settings: GroupSettings
    configs: StoredConfigs
    random: random.Random
    loop: asyncio.AbstractEventLoop
    tasks: BackgroundTasks
    rebalance_counts: Counter[GroupKind] = field(default_factory=Counter)
    """Generations, or epochs of consumer groups, since the start."""

    def consumer_configs(self, group_id: str) -> ConsumerGroupConfigs:
        """The configs of a consumer group, its own or the broker's."""
        return ConsumerGroupConfigs.of_group(self.settings, self.configs.of_group(group_id))


@dataclass(frozen=True, slots=True)
class Committer:
    """The client that commits offsets, as its request names it."""

    member_id: str
    instance_id: str | None
    epoch: int
    """The generation, or in consumer groups the member epoch; below 0 for clients without one."""
    version: int
    """Of the request."""
    is_transactional: bool = False

    @property
    def has_id(self) -> bool:
        return bool(self.member_id) or self.instance_id is not None


class Group(ABC):
    """Members, and what they may do with the offsets of their group."""

    kind: ClassVar[GroupKind]
    protocol_type: str
    """`consumer`, or another that members use; empty if there never was a member."""

    def __init__(self, id: str) -> None:
        self.id = id

    @property
    @abstractmethod
    def state_name(self) -> str:
        """By Kafka's names: Empty, Stable and so on."""

    @property
    @abstractmethod
    def is_empty(self) -> bool:
        """Whether it has no members."""

    @property
    @abstractmethod
    def member_count(self) -> int: ...

    @abstractmethod
    def is_subscribed_to(self, topic: str) -> bool: ...

    @abstractmethod
    def check_commit(self, client: Committer) -> None:
        """Raises KafkaError unless the client may commit; renews the session of a member."""

    @abstractmethod
    def check_fetch(self, member_id: str | None, epoch: int) -> None:
        """Raises KafkaError unless a member may fetch offsets; clients that are not members have
        no id and an epoch below 0.
        """

    @abstractmethod
    def expiry_base_ms(self, topic: str, commit_timestamp_ms: int) -> int | None:
        """When the retention of an offset begins; None while it is in use."""

    @abstractmethod
    def tombstones(self) -> Records:
        """Records that remove the group from the log, without its offsets."""

    @abstractmethod
    def close(self) -> None:
        """The group was removed or replaced: its timers stop."""


class Groups:
    """All groups by id."""

    def __init__(self) -> None:
        self._by_id: dict[str, Group] = {}
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def lock(self, id: str) -> asyncio.Lock:
        """Held while a change is written that depends on the current state of the group."""
        lock = self._locks.get(id)
        if lock is None:
            lock = self._locks[id] = asyncio.Lock()
        return lock

    def find(self, id: str) -> Group | None:
        return self._by_id.get(id)

    def put(self, group: Group) -> None:
        """Adds a group; another one with the same id is closed."""
        before = self._by_id.get(group.id)
        if before is not None and before is not group:
            before.close()
        self._by_id[group.id] = group

    def take(self, group: Group) -> None:
        """Removes a group from the table; the caller closes it."""
        if self._by_id.get(group.id) is group:
            del self._by_id[group.id]

    def snapshot(self) -> list[Group]:
        """In any order; may be called in any thread."""
        return list(self._by_id.values())

    def __iter__(self) -> Iterator[Group]:
        """By id."""
        return iter([self._by_id[id] for id in sorted(self._by_id)])


def group_error_code(error: Exception) -> ErrorCode:
    """As Kafka answers members when a record of their group is rejected by the log."""
    match code_for(error):
        case ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        case ErrorCode.NOT_LEADER_OR_FOLLOWER | ErrorCode.KAFKA_STORAGE_ERROR:
            return ErrorCode.NOT_COORDINATOR
        case _:
            return ErrorCode.UNKNOWN_SERVER_ERROR


def commit_error_code(error: Exception) -> ErrorCode:
    """For committed offsets, which may exceed a batch or come from a fenced producer."""
    match code_for(error):
        case ErrorCode.MESSAGE_TOO_LARGE:
            return ErrorCode.INVALID_COMMIT_OFFSET_SIZE
        case ErrorCode.INVALID_PRODUCER_EPOCH | ErrorCode.INVALID_TXN_STATE as code:
            return code
        case _:
            return group_error_code(error)


@contextmanager
def kafka_errors(
    code_of: Callable[[Exception], ErrorCode] = group_error_code,
) -> Iterator[None]:
    """Raises a KafkaError for what the log rejected."""
    try:
        yield
    except KafkaError:
        raise
    except StoreError as error:
        raise KafkaError(code_of(error), str(error)) from error
