"""A partition as its server tells of it: bounds, times, and the pieces behind the cold tier.

Invariant  bounds are those of the first look. A piece is cut by offsets, whose bytes are guessed
           from a sample; what is read is what the server has then.
Threads    any; the client takes one request at a time.
"""

from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise
from typing import Final

from varve.commit_log.directory_files import encode_topic_id
from varve.commit_log.names import TopicPartition
from varve.commit_log.transaction_index import AbortedTransaction
from varve.foundation.errors import NotFound
from varve.jobs.source.cold_plan import ColdPlan
from varve.jobs.source.pieces import ServerPiece
from varve.jobs.source.server_stretches import fetch_some, whole_batches
from varve.kafka_client.client import EARLIEST, LATEST, KafkaClient, TopicMetadata
from varve.kernels.batch_layout import BatchColumn

_SAMPLE_BYTES: Final = 256 << 10
_SAMPLE_WAIT_MS: Final = 500


class ServerTail:
    """One partition behind a server; `cold` is the part of it that is read elsewhere."""

    is_whole: Final = True
    """A server tells of its cold part as well: where the log begins, and what it has of a time."""

    def __init__(
        self,
        client: KafkaClient,
        topic: TopicMetadata,
        partition: int,
        *,
        cold: ColdPlan | None,
        is_committed: bool,
    ) -> None:
        self.owner = TopicPartition(topic.name, partition)
        self._client = client
        self._topic = topic
        self._cold = cold
        self._is_committed = is_committed

    def topic_id(self) -> str:
        return encode_topic_id(self._topic.id)

    @property
    def directory(self) -> str:
        return self._client.address.name

    @property
    def first_offset(self) -> int:
        return self.start_offset

    @cached_property
    def start_offset(self) -> int:
        return self._find(EARLIEST)

    @cached_property
    def end_offset(self) -> int:
        """Behind the last record that is seen: for readers of committed ones, the stable end."""
        return self._find(LATEST)

    @property
    def stable_offset(self) -> int:
        return self.end_offset

    @cached_property
    def log_end_offset(self) -> int:
        """Behind the last record of all, transactions without an outcome included."""
        return self._find(LATEST, is_committed=False)

    @property
    def cleaned_up_to(self) -> int:
        """A server does not tell how far its cleaner has come: maybe to the end."""
        return self.end_offset

    def _find(self, timestamp: int, *, is_committed: bool | None = None) -> int:
        owner = self.owner
        if is_committed is None:
            is_committed = self._is_committed
        found = self._client.find_offset(
            owner.topic, owner.partition, timestamp, is_committed=is_committed
        )
        if found is None:
            raise NotFound(f"{self.directory} tells no bounds of {owner}")
        return found

    def find_by_time(self, timestamp: int, *, start_offset: int) -> int | None:
        """The first offset of a record of this time or later."""
        if timestamp < 0:
            return start_offset
        owner = self.owner
        found = self._client.find_offset(
            owner.topic, owner.partition, timestamp, is_committed=self._is_committed
        )
        return None if found is None else max(found, start_offset)

    def aborted(self, start_offset: int, end_offset: int) -> list[AbortedTransaction]:
        """Those that began in the cold part and were aborted behind it."""
        cold = self._cold
        if cold is None or start_offset >= cold.end_offset:
            return []
        border = cold.end_offset
        if cold.stable_offset >= border or border >= self.end_offset:
            return []
        fetched = fetch_some(
            self._client,
            self.owner,
            border,
            end_offset=self.end_offset,
            max_bytes=1,
            is_committed=True,
        )
        if fetched is None:
            return []
        return [
            AbortedTransaction(one.producer_id, one.first_offset, border, border)
            for one in fetched.aborted
            if one.first_offset < min(border, end_offset)
        ]

    def pieces(
        self,
        *,
        start_offset: int,
        end_offset: int,
        min_ms: int,
        split_bytes: int,
        aborted: Sequence[AbortedTransaction],
    ) -> list[ServerPiece]:
        """All of [start, end) that may hold a record of the time or later."""
        first = self.find_by_time(min_ms, start_offset=start_offset)
        if first is None or first >= end_offset:
            return []
        size = self._guess_size(first, end_offset)
        count = min(max(1, round(size / split_bytes)), end_offset - first)
        edges = [first + (end_offset - first) * number // count for number in range(count + 1)]
        return [
            ServerPiece(
                address=self._client.address,
                topic=self.owner.topic,
                partition=self.owner.partition,
                start_offset=start,
                end_offset=end,
                size=size // count,
                is_committed=self._is_committed,
            )
            for start, end in pairwise(edges)
        ]

    def _guess_size(self, start_offset: int, end_offset: int) -> int:
        """About the bytes of a range, as if all of it were like its beginning."""
        fetched = self._client.fetch(
            self.owner.topic,
            self.owner.partition,
            start_offset,
            max_bytes=_SAMPLE_BYTES,
            max_wait_ms=_SAMPLE_WAIT_MS,
            is_committed=self._is_committed,
        )
        rows, size = whole_batches(fetched.data, f"{self.directory}: {self.owner}")
        if not len(rows):
            return len(fetched.data)
        covered = int(rows[-1, BatchColumn.LAST_OFFSET]) + 1 - start_offset
        return max(size, size * (end_offset - start_offset) // covered)
