"""The interface of cleaning to the remote tier: its bounds, and key look-ups."""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from varve.cleaning.key_index.key_index import KeyEntry
from varve.commit_log import TopicPartition
from varve.foundation.errors import Unavailable


@dataclass(frozen=True, slots=True)
class RemoteBounds:
    """How far a partition is copied to object storage, and compacted there.

    Offsets before `copied_offset` are copied: only segments that end there or before are cleaned
    locally. The remote tier is compacted before `cleaned_up_to`: local tombstones and transaction
    markers from there on stay, because object storage may still hold what they delete.
    """

    copied_offset: int
    cleaned_up_to: int


class KeySearch(NamedTuple):
    """A search for the latest record of a key hash in [start, end)."""

    hash: tuple[int, int]
    topic_id: bytes
    start_offset: int
    end_offset: int


class RemoteTier(Protocol):
    """The remote tier of one store."""

    def bounds(self, partition: TopicPartition) -> RemoteBounds | None:
        """None for a topic that is not tiered. Raises StoreError when the store does not answer."""

    def find_key(self, partition: TopicPartition, search: KeySearch) -> KeyEntry | None:
        """The latest record of a key hash in the remote segments.

        Segments that end before the start offset are ignored. None when there is none, or only one
        that the local log has removed since. Raises Unavailable when the store does not answer.
        """


class NoRemoteTier:
    """For a store whose topics are all local."""

    def bounds(self, partition: TopicPartition) -> RemoteBounds | None:
        return None

    def find_key(self, partition: TopicPartition, search: KeySearch) -> KeyEntry | None:
        raise Unavailable(
            f"{partition}: offsets {search.start_offset} to {search.end_offset - 1} may hold the "
            "key and are in object storage alone: open the store with its varve.tier.url"
        )
