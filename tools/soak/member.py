"""A member of a group, of either protocol."""

import random

from tests.support.kafka_clients import ConsumerClient, ConsumerOptions, GroupProtocol
from tools.soak.clients import Way
from tools.soak.model import GroupModel
from tools.soak.resilient import POLL_SECONDS, Resilient


class Member(Resilient):
    """A member of a group that commits what it has read."""

    def __init__(
        self,
        way: Way,
        topic: str,
        group: str,
        protocol: GroupProtocol,
        model: GroupModel,
        source: random.Random,
    ) -> None:
        options = ConsumerOptions(group=group, protocol=protocol, session_timeout_ms=6_000)

        def make() -> ConsumerClient:
            consumer = way.consumer(options)
            consumer.subscribe(topic)
            return consumer

        super().__init__(f"member of {group} {way.name}", make, source)
        self._topic = topic
        self._model = model

    def do(self, client: ConsumerClient) -> None:
        found = client.poll(POLL_SECONDS)
        if not found:
            return
        for one in found:
            self._model.note_read(one.partition, one.offset)
        ends = {one.partition: one.offset + 1 for one in found}
        client.commit({(self._topic, number): end for number, end in ends.items()})
        self._model.note_commit(ends)
        self.done_count += len(found)
