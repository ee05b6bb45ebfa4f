"""Offsets that nobody needs any more, and groups without anything to remember.

Offsets go when their group has been empty, or has not read the topic, for
`offsets.retention.minutes`; when the time an old client gave them is over; and with their topic.
A group goes when it is empty and has no offsets.

Threads    the loop's alone; one round at a time.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from varve.broker.groups.group import Group, Groups
from varve.broker.groups.offsets import CommittedOffset, Offsets
from varve.broker.settings import GroupSettings
from varve.broker.topics import ServedTopic, Topics
from varve.commit_log import TopicPartition
from varve.foundation.clock import Clock
from varve.foundation.errors import StoreError
from varve.wire import NO_ID

logger = logging.getLogger(__name__)

_MINUTE_MS = 60_000


class OffsetExpiry:
    """Looks through all groups now and then; `delete_group` takes one out of the log."""

    def __init__(
        self,
        groups: Groups,
        offsets: Offsets,
        topics: Topics,
        *,
        clock: Clock,
        settings: GroupSettings,
        delete_group: Callable[[Group], Awaitable[None]],
    ) -> None:
        self._groups = groups
        self._offsets = offsets
        self._topics = topics
        self._clock = clock
        self._retention_ms = settings.offsets_retention_minutes * _MINUTE_MS
        self._delete_group = delete_group

    async def run_once(self) -> None:
        """One round; a group whose partition refuses it is tried again in the next."""
        now_ms = self._clock.now_ms()
        for group in list(self._groups):
            # Groups may be many: requests are answered in between.
            await asyncio.sleep(0)
            try:
                await self._expire(group, now_ms)
            except StoreError as error:
                logger.warning("offsets stay", extra={"group": group.id, "error": str(error)})

    async def drop_topic(self, topic: ServedTopic) -> None:
        """A topic was deleted; offsets that the log refuses to drop go in a later round."""
        for group in list(self._offsets.groups()):
            await asyncio.sleep(0)
            known = self._offsets.known_partitions(group)
            gone = [one for one in known if self._was_of(group, one, topic)]
            try:
                await self._offsets.delete(group, gone)
            except StoreError as error:
                logger.warning("offsets stay", extra={"group": group, "error": str(error)})

    def _was_of(self, group: str, partition: TopicPartition, topic: ServedTopic) -> bool:
        """A topic that was made anew under the name has another id."""
        one = self._offsets.find(group, partition)
        is_named_so = partition.topic == topic.name
        return is_named_so and (one is None or one.topic_id in (NO_ID, topic.id))

    async def _expire(self, group: Group, now_ms: int) -> None:
        expired = [
            partition
            for partition, one in self._offsets.of_group(group.id).items()
            if not self._offsets.is_pending(group.id, partition)
            and self._is_over(group, partition, one, now_ms)
        ]
        await self._offsets.delete(group.id, expired)
        if expired:
            logger.info("offsets expired", extra={"group": group.id, "count": len(expired)})
        if group.is_empty and not self._offsets.has_any(group.id):
            await self._delete_group(group)

    def _is_over(
        self, group: Group, partition: TopicPartition, one: CommittedOffset, now_ms: int
    ) -> bool:
        topic = self._topics.find(partition.topic)
        if topic is None or (one.topic_id not in (NO_ID, topic.id)):
            return True
        base_ms = group.expiry_base_ms(partition.topic, one.commit_timestamp_ms)
        if base_ms is None:
            return False
        if one.expire_timestamp_ms >= 0:
            return now_ms >= one.expire_timestamp_ms
        return now_ms - base_ms >= self._retention_ms
