"""A transactional producer."""

import random
from concurrent.futures import Future

from tests.support.kafka_clients import Failed, ProducerClient, ProducerOptions
from tools.soak.clients import Way
from tools.soak.model import Partition, Transactions
from tools.soak.resilient import Resilient
from tools.soak.sending import is_acknowledged

Sent = dict[Partition, list[Future[int]]]


class Transactor(Resilient):
    """Transactions that each write their number to all partitions of a topic.

    A client that commits without the records it gave up on may do so only if that is known of it.
    """

    def __init__(
        self,
        way: Way,
        codec: str,
        partitions: list[Partition],
        model: Transactions,
        source: random.Random,
        *,
        commits_in_part: bool,
    ) -> None:
        self.id = f"{way.name}-{codec}"
        options = ProducerOptions(transactional_id=self.id, codec=codec)
        super().__init__(f"transactions {self.id}", lambda: way.producer(options), source)
        self._partitions = partitions
        self._model = model
        self._commits_in_part = commits_in_part
        self._number = 0

    def do(self, client: ProducerClient) -> None:
        number, self._number = self._number, self._number + 1
        model = self._model
        model.uncertain.add(number)
        copies = model.copies[number] = self._source.randint(1, 10)
        value = f"{self.id}:{number}".encode()
        client.begin()
        sent: Sent = {one: [] for one in self._partitions}
        for _ in range(copies):
            for one in self._partitions:
                sent[one].append(client.send(one, value))
        is_commit = self._source.random() < 0.7
        try:
            is_commit = self._end(client, is_wanted=is_commit)
        finally:
            is_whole = all(is_acknowledged(one) for some in sent.values() for one in some)
            if is_commit and not is_whole and self._commits_in_part:
                self._note_partial(number, sent)
        if is_commit and not is_whole:
            raise RuntimeError("the client commits without all of its records")
        model.uncertain.remove(number)
        (model.committed if is_commit else model.aborted).add(number)
        self.done_count += 1

    def _end(self, client: ProducerClient, *, is_wanted: bool) -> bool:
        """Whether it was committed."""
        try:
            if is_wanted:
                client.commit()
                return True
            client.abort()
        except Failed:
            client.abort()
        return False

    def _note_partial(self, number: int, sent: Sent) -> None:
        self._model.uncertain.remove(number)
        self._model.partial[number] = {
            one: sum(map(is_acknowledged, some)) for one, some in sent.items()
        }
