"""Which topics the members of a classic group read, as far as they tell.

The coordinator passes what members say to each other on without looking; only where the group
speaks the protocol of consumers it looks for topics, since offsets of those are in use.
"""

import struct
from collections.abc import Iterable
from typing import Final

from varve.foundation.errors import MalformedMessage
from varve.wire import decode
from varve.wire.messages.groups import ConsumerProtocolSubscription

CONSUMER_PROTOCOL: Final = "consumer"

_VERSION: Final = struct.Struct(">h")


def find_subscribed_topics(subscriptions: Iterable[bytes]) -> frozenset[str] | None:
    """The topics of all of them; None where one cannot be read."""
    topics: set[str] = set()
    for data in subscriptions:
        found = _find_topics(data)
        if found is None:
            return None
        topics.update(found)
    return frozenset(topics)


def _find_topics(data: bytes) -> list[str] | None:
    if len(data) < _VERSION.size:
        return None
    version = int(_VERSION.unpack_from(data)[0])
    if version < 0:
        return None
    known = ConsumerProtocolSubscription.VERSIONS
    # Later versions begin like the ones before, so that they can be read as the last known one.
    try:
        read = decode(ConsumerProtocolSubscription, min(version, known.last), data, _VERSION.size)
    except MalformedMessage:
        return None
    return read.topics
