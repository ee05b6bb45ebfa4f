"""Where receipts are kept: beside the topics they speak of.

Layout     `<cluster>/<topic>.<topic id>/receipt/<id>.json` for a topic in the cold tier,
           `varve-receipt-<id>.json` in the log directory for one that is not.
           docs/formats/receipt.md
"""

import json
from collections.abc import Sequence
from typing import Any

from varve.disk import write_atomically
from varve.jobs.erase.places import Places, TopicPlace


def put_receipt(
    places: Places, topics: Sequence[TopicPlace], id: str, document: dict[str, Any]
) -> tuple[str, ...]:
    """Puts the receipt to every topic; gives where it is."""
    data = encode_receipt(document)
    stored: list[str] = []
    for topic in topics:
        if topic.homes:
            assert places.tier is not None
            objects = places.tier.reach.objects()
            key = places.receipt_key(topic, id)
            objects.put(key, data)
            stored.append(f"{objects.name}/{key}")
        else:
            assert places.hot is not None
            path = f"{places.hot.directories[0]}/varve-receipt-{id}.json"
            if path not in stored:
                write_atomically(places.hot.fs, path, data)
                stored.append(path)
    return tuple(stored)


def encode_receipt(document: dict[str, Any]) -> bytes:
    """A receipt as it is kept, for people and programs to read."""
    return json.dumps(document, indent=1, ensure_ascii=False).encode() + b"\n"
