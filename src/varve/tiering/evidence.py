"""The evidence of removals from a partition in the remote tier: written, read, bounded.

Layout     `evidence/<id>.json`: one removal, or {"job": ..., "balances": [...]} of a job; each as
           in docs/reference/formats/evidence.md, without id and chain.
           `evidence/archive-<count>.json` has the expiries that had an object each before, and
           their chain.
Invariant  an expiry is in the archive before its object is deleted. Of erasures and jobs every
           object stays. An archive replaces the one before, which is deleted last.
Crash      an expiry may be both in the archive and in an object, or in two archives: it counts
           once, and the next round deletes what is left over.
Threads    one writer per partition at a time, which holds its `work`.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from varve.cleaning.removals.removal import Removal, decode_removal, encode_removal
from varve.foundation.errors import Corrupt, ObjectExists, Unavailable, Unbalanced
from varve.object_store import ObjectStore
from varve.tiering.manifest.paths import RemotePath
from varve.tiering.manifest.store import ManifestStore

EXPIRY_PREFIX: Final = "expiry-"
ARCHIVE_PREFIX: Final = "archive-"
EXPIRIES_MAX: Final = 256
"""Objects of single expiries; above it the older half goes into the archive."""
ARCHIVE_BYTES_MAX: Final = 4 << 20
"""Bytes of the expiries in an archive; the oldest beyond it leave only their chain and number."""
FIRST_CHAIN: Final = "0" * 64


def put_expiry(objects: ObjectStore, path: RemotePath, name: str, removal: Removal) -> None:
    """Records an expiry before it begins; a pass that repeats it leaves the first record."""
    with suppress(ObjectExists):
        objects.create(path.evidence_key(f"{EXPIRY_PREFIX}{name}"), _encode(removal))


def _encode(removal: Removal) -> bytes:
    return json.dumps(encode_removal(removal), separators=(",", ":")).encode()


@dataclass(frozen=True, slots=True)
class EvidenceArchive:
    """The older expiries: the latest ones, and the chain and number of those before them."""

    removals: tuple[Removal, ...] = ()
    dropped: int = 0
    carried: str = FIRST_CHAIN

    @property
    def count(self) -> int:
        return self.dropped + len(self.removals)

    @property
    def chain(self) -> str:
        return _extend(self.carried, self.removals)

    def add(self, removals: Sequence[Removal]) -> "EvidenceArchive":
        """With later removals; drops the oldest beyond `ARCHIVE_BYTES_MAX`."""
        listed = [*self.removals, *removals]
        first, size = len(listed), 0
        while first and (size := size + len(_encode(listed[first - 1]))) <= ARCHIVE_BYTES_MAX:
            first -= 1
        first = min(first, len(listed) - 1)
        carried = _extend(self.carried, listed[:first])
        return EvidenceArchive(tuple(listed[first:]), self.dropped + first, carried)

    def encode(self) -> bytes:
        document = {
            "dropped": self.dropped,
            "carried": self.carried,
            "balances": [encode_removal(removal) for removal in self.removals],
            "chain": self.chain,
        }
        return json.dumps(document, separators=(",", ":")).encode()


def _extend(chain: str, removals: Iterable[Removal]) -> str:
    """The chain after removals: the hash of the chain before and the next removal, in turn."""
    for removal in removals:
        chain = hashlib.sha256(chain.encode() + _encode(removal)).hexdigest()
    return chain


def archive_expiries(objects: ObjectStore, path: RemotePath) -> int:
    """Moves older expiries into the archive when there are too many objects; returns how many."""
    keys = sorted(info.key for info in objects.list(path.evidence_folder))
    expiries, archives = (
        [key for key in keys if key.startswith(f"{path.evidence_folder}{prefix}")]
        for prefix in (EXPIRY_PREFIX, ARCHIVE_PREFIX)
    )
    if len(expiries) <= EXPIRIES_MAX and len(archives) <= 1:
        return 0
    archive = EvidenceArchive()
    if archives:
        archive = read_archive(objects.get(archives[-1]), archives[-1])
    old = expiries[: max(len(expiries) - EXPIRIES_MAX // 2, 0)]
    known = {_encode(removal) for removal in archive.removals}
    removals = [
        removal
        for key in old
        for removal in decode_evidence(objects.get(key), key)
        if _encode(removal) not in known
    ]
    if removals:
        archive = archive.add(removals)
        last = max(removal.end_offset for removal in archive.removals)
        key, data = (
            path.evidence_key(f"{ARCHIVE_PREFIX}{last:020}-{archive.count:012}"),
            archive.encode(),
        )
        with suppress(ObjectExists):
            objects.create(key, data)
        if bytes(objects.get(key)) != data:
            raise Unavailable(f"{key} is not as it was written; the next round writes it again")
        archives.append(key)
    objects.delete([*old, *archives[:-1]])
    return len(old)


def read_archive(data: bytes | memoryview, key: str) -> EvidenceArchive:
    """Raises Corrupt unless the chain matches."""
    removals = tuple(_decode_balances(data, key))
    document = json.loads(bytes(data))
    dropped, carried = document.get("dropped"), document.get("carried")
    if type(dropped) is not int or dropped < 0 or not isinstance(carried, str):
        raise Corrupt(f"{key}: not an archive of removal records")
    archive = EvidenceArchive(removals, dropped, carried)
    if archive.chain != document.get("chain"):
        raise Corrupt(f"{key}: its chain does not match its removals: one of them was changed")
    return archive


@dataclass(frozen=True, slots=True)
class RemoteRemoval:
    """A removal on record in the bucket, under the key of its evidence."""

    key: str
    balance: Removal
    is_done: bool


def read_remote_removals(objects: ObjectStore, manifests: ManifestStore) -> list[RemoteRemoval]:
    """The removals from a partition in the remote tier, oldest first.

    Raises Corrupt for evidence that cannot be read or does not add up.
    """
    manifest = manifests.load()
    readable = {
        (segment.base_offset, segment.end_offset + 1, segment.size)
        for segment in manifests.readable(manifest)
    }
    keys = [info.key for info in objects.list(manifest.path.evidence_folder)]
    removals: dict[bytes, RemoteRemoval] = {}
    for key in keys:
        if key.endswith(".json"):
            for balance in decode_evidence(objects.get(key), key):
                inputs = {
                    (summary.base_offset, summary.next_offset, summary.size)
                    for summary in balance.inputs
                }
                removal = RemoteRemoval(key, balance, is_done=not inputs & readable)
                removals.setdefault(_encode(balance), removal)
    return sorted(removals.values(), key=lambda removal: (removal.balance.at_ms, removal.key))


def decode_evidence(data: bytes | memoryview, key: str) -> Iterator[Removal]:
    """The balances of one object, each checked; raises Corrupt."""
    if key.rsplit("/", 1)[-1].startswith(ARCHIVE_PREFIX):
        yield from read_archive(data, key).removals
    else:
        yield from _decode_balances(data, key)


def _decode_balances(data: bytes | memoryview, key: str) -> Iterator[Removal]:
    try:
        document = json.loads(bytes(data))
        listed: list[dict[str, Any]] = document.get("balances", [document])
        for number, fields in enumerate(listed, start=1):
            balance = decode_removal(number, fields)
            balance.check()
            yield balance
    except (ValueError, AttributeError, TypeError) as error:
        raise Corrupt(f"{key}: not a removal record: {error}") from error
    except (Corrupt, Unbalanced) as error:
        raise Corrupt(f"{key}: {error}") from error
