"""A transactional producer."""

import random

from tests.soak.doors import Way
from tests.soak.model import Partition, Transactions
from tests.soak.resilient import Resilient
from tests.soak.sending import is_acknowledged
from tests.support.kafka_clients import Failed, ProducerClient, ProducerOptions


class Transactor(Resilient):
    """Transactions that each write their number to all partitions of a topic."""

    def __init__(
        self,
        way: Way,
        codec: str,
        partitions: list[Partition],
        model: Transactions,
        source: random.Random,
    ) -> None:
        self.id = f"{way.name}-{codec}"
        options = ProducerOptions(transactional_id=self.id, codec=codec)
        super().__init__(f"transactions {self.id}", lambda: way.producer(options), source)
        self._partitions = partitions
        self._model = model
        self._number = 0

    def do(self, client: ProducerClient) -> None:
        number, self._number = self._number, self._number + 1
        model = self._model
        model.uncertain.add(number)
        copies = model.copies[number] = self._source.randint(1, 10)
        value = f"{self.id}:{number}".encode()
        client.begin()
        sent = [client.send(one, value) for _ in range(copies) for one in self._partitions]
        is_wanted = self._source.random() < 0.7
        try:
            if is_wanted:
                client.commit()
            else:
                client.abort()
        except Failed:
            is_wanted = False
            client.abort()
        if is_wanted and not all(map(is_acknowledged, sent)):
            raise RuntimeError("the client commits without all of its records")
        model.uncertain.remove(number)
        (model.committed if is_wanted else model.aborted).add(number)
        self.done_count += 1
