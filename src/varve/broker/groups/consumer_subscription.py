"""The topics that members of consumer groups subscribe to, as they are now.

Threads    `find_matching` runs off the loop.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from uuid import UUID

from varve.broker.groups.assignors import Subscriptions
from varve.broker.groups.consumer_regex import TopicPattern
from varve.broker.groups.consumer_state import ConsumerState
from varve.broker.topics import ServedTopic, Topics
from varve.wire import NO_ID


def find_matching(regexes: Sequence[str], names: Sequence[str]) -> dict[str, frozenset[str]]:
    """Names by the expression that matches them; raises InvalidRequest for one that is none."""
    patterns = [TopicPattern(one) for one in regexes]
    return {
        pattern.text: frozenset(name for name in names if pattern.matches(name))
        for pattern in patterns
    }


def hash_topics(names: Iterable[str], topics: Topics) -> int:
    """Differs when a topic was made, deleted or grew; 0 where none of them exists."""
    digest = hashlib.blake2b(digest_size=8)
    count = 0
    for topic in _find_all(sorted(names), topics):
        count += 1
        digest.update(f"{topic.name}:{topic.id}:{len(topic.logs)};".encode())
    return int.from_bytes(digest.digest(), "big", signed=True) if count else 0


def _find_all(names: Iterable[str], topics: Topics) -> list[ServedTopic]:
    """Only topics that have an id can be told to members."""
    found = [topics.find(name) for name in names]
    return [one for one in found if one is not None and one.id != NO_ID]


def subscriptions_of(
    state: ConsumerState, topics: Topics
) -> tuple[Subscriptions, Mapping[UUID, int]]:
    """What assignors need: topics by member, and partitions by topic."""
    served = {one.name: one for one in _find_all(state.subscribed_topics(), topics)}
    by_member = {
        id: frozenset(served[name].id for name in state.topics_of(member) if name in served)
        for id, member in state.members.items()
    }
    return by_member, {one.id: len(one.logs) for one in served.values()}
