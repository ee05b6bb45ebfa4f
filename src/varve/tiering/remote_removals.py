"""The evidence in the bucket: what expiry and jobs took from the cold part of a partition.

Layout     `evidence/<job id>.json`: one balance, or {"job": ..., "balances": [...]}; each balance
           as in docs/formats/evidence.md, without id and chain.
Invariant  reads only. Evidence is written before its removal: one whose segments can still be read
           was not carried out.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from varve.cleaning.removals.removal import Removal
from varve.cleaning.removals.removal_json import decode_removal
from varve.foundation.errors import Corrupt, Unbalanced
from varve.object_store import ObjectStore
from varve.tiering.manifest.store import ManifestStore


@dataclass(frozen=True, slots=True)
class RemoteRemoval:
    """A removal on record in the bucket, under the key of its evidence."""

    key: str
    balance: Removal
    is_done: bool


def read_remote_removals(objects: ObjectStore, manifests: ManifestStore) -> list[RemoteRemoval]:
    """The removals from a partition's cold part, oldest first.

    Raises Corrupt for evidence that cannot be read or does not add up.
    """
    manifest = manifests.load()
    readable = {
        (one.base_offset, one.end_offset + 1, one.size)
        for one in manifests.segments(manifest)
        if one.is_readable
    }
    home = manifest.home
    keys = [info.key for info in objects.list(f"{home.prefix}evidence/")]
    found = []
    for key in keys:
        if key.endswith(".json"):
            for balance in decode_evidence(objects.get(key), key):
                inputs = {(one.base_offset, one.next_offset, one.size) for one in balance.inputs}
                found.append(RemoteRemoval(key, balance, is_done=not inputs & readable))
    return sorted(found, key=lambda one: (one.balance.at_ms, one.key))


def decode_evidence(data: bytes | memoryview, key: str) -> Iterator[Removal]:
    """The balances of one object, each checked; raises Corrupt."""
    try:
        document = json.loads(bytes(data))
        listed: list[dict[str, Any]] = document.get("balances", [document])
        for number, one in enumerate(listed, start=1):
            balance = decode_removal(number, one)
            balance.check()
            yield balance
    except (ValueError, AttributeError, TypeError) as error:
        raise Corrupt(f"{key}: is no evidence of a removal: {error}") from error
    except (Corrupt, Unbalanced) as error:
        raise Corrupt(f"{key}: {error}") from error
