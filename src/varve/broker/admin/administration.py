"""Changes of topics and settings, one at a time, and what follows each of them.

Invariant  when a change is answered the broker serves what it led to, and requests that were
           parked on what is gone have been woken.
Threads    the loop's; the work itself is done off it.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable
from typing import TypeVar

from varve.broker.admin.broker_configs import BrokerConfigs
from varve.broker.admin.settings import AdminSettings
from varve.broker.admin.topic_configs import TopicConfigs
from varve.broker.offload import Offload
from varve.broker.topics import ServedTopic, Topics, TopicsView
from varve.commit_log import TopicPartition
from varve.embedded import Store
from varve.foundation.settings import Settings

T = TypeVar("T")


class Administration:
    """What the handlers of topics and settings share."""

    def __init__(
        self,
        store: Store,
        topics: Topics,
        settings: AdminSettings,
        *,
        offload: Offload,
        told: list[Settings],
    ) -> None:
        """`told` are the settings that the broker's parts were made with; it may grow later."""
        told.append(settings)
        self.store = store
        self.topics = topics
        self.settings = settings
        self.topic_configs = TopicConfigs(store)
        self.broker_configs = BrokerConfigs(store, self.topic_configs, told)
        self._turn = asyncio.Lock()
        self.on_changed: list[Callable[[TopicPartition], None]] = []
        """Called in the loop with each partition of a topic that was altered or deleted."""
        self.on_deleted: list[Callable[[ServedTopic], None]] = []
        """Called in the loop with a topic that is gone."""
        self._offload = offload

    @contextlib.asynccontextmanager
    async def changing(self, names: Iterable[str]) -> AsyncIterator[None]:
        """The turn of one who makes out changes of these topics and makes them.

        What they are afterwards is served when this ends, however it ends; `names` may grow.
        """
        async with self._turn:
            view: TopicsView | None = None
            try:
                yield
                # Thousands of partitions take longer than a loop should wait.
                view = await self._offload(self.topics.look)
            finally:
                self._follow(names, view)

    async def change(self, work: Callable[..., T], *args: object) -> T:
        """Makes one change of the store."""
        return await self._offload(work, *args)

    def _follow(self, names: Iterable[str], view: TopicsView | None) -> None:
        """Serves what the topics of these names are now."""
        before = [found for name in names if (found := self.topics.find(name)) is not None]
        self.topics.show(view or self.topics.look())
        for topic in before:
            for number in range(len(topic.logs)):
                for call in self.on_changed:
                    call(TopicPartition(topic.name, number))
            now = self.topics.find(topic.name)
            if now is None or now.id != topic.id:
                for tell in self.on_deleted:
                    tell(topic)
