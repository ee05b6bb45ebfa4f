"""The receipt of an erasure: the request, the changes, the re-scan, and what was out of reach.

It is signed, and stored beside its topics once the erasure is complete. Before the first change the
request is stored; the receipt replaces it.

Layout     `receipt/<id>.json` and `erasure/<id>.json` below `<cluster>/<topic>.<topic id>/` for a
           tiered topic, `varve-receipt-<id>.json` and `varve-erasure-<id>.json` in the log
           directory for one that is not. The signature is Ed25519 over the document without it as
           canonical JSON: keys sorted, no spaces, UTF-8. docs/reference/formats/receipt.md
Invariant  contains no key and no value, only salted digests of them. The changes are read back from
           the evidence, that of earlier runs under the same id included. An id identifies one
           request: a different request under it is rejected before the first change. A JSON object
           with a duplicate name is rejected, since parsers differ in which value they use. That
           copies outside the topics can be written is checked before anything is erased.
"""

import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Final

from varve.cleaning.removals import removal
from varve.cleaning.removals.audit import LiveSegments, Outcome, find_outcome
from varve.cleaning.removals.removal_log import read_removal_log
from varve.commit_log import Log
from varve.commit_log.check.partition import ignore_progress
from varve.disk import FileSystem, write_atomically
from varve.foundation.errors import Corrupt, InvalidRequest, ObjectNotFound, Unavailable
from varve.jobs.erase.receipt_signature import SIGNATURE
from varve.jobs.erase.request import ErasureRequest, has_digests
from varve.jobs.erase.result import ErasureResult
from varve.jobs.erase.targets import ErasureTargets, TopicTarget
from varve.jobs.results import JsonFields, render_template
from varve.jobs.tier.bucket import BucketAccess
from varve.object_store import ObjectStore
from varve.tiering.history_check import ERASURE_PREFIX
from varve.tiering.manifest.paths import RemotePath
from varve.tiering.manifest.segment import LOG_PART

FORMAT: Final = 1
_REQUEST_KIND: Final = "varve erasure request"
_FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class StoredObject:
    """One version of an object or file; the checksum is the CRC-32C of its bytes, in hex.

    `etag` and `version` are those of the object store, None if it has none.
    """

    key: str
    size: int
    crc32c: str | None
    etag: str | None = None
    version: str | None = None

    def to_json(self) -> dict[str, object]:
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True, slots=True)
class ObjectChange(JsonFields):
    """An object before the erasure, and the object that replaced it."""

    before: StoredObject
    after: StoredObject


@dataclass(frozen=True, slots=True)
class PartitionErased:
    """The erasure of one partition on one tier: its balances and its changed objects."""

    partition: int
    tier: str
    balances: tuple[removal.Removal, ...]
    objects: tuple[dict[str, Any], ...]

    @property
    def records(self) -> int:
        return sum(balance.records.get(removal.Reason.ERASED, 0) for balance in self.balances)

    @property
    def bytes(self) -> int:
        return sum(balance.bytes.get(removal.Reason.ERASED, 0) for balance in self.balances)

    def to_json(self) -> dict[str, object]:
        return {
            "partition": self.partition,
            "tier": self.tier,
            "segments": len(self.balances),
            "records": self.records,
            "bytes": self.bytes,
            "balances": [removal.encode_removal(balance) for balance in self.balances],
            "objects": list(self.objects),
        }


def read_remote_erased(
    bucket: BucketAccess, partition: RemotePath, request: str
) -> PartitionErased:
    """Reads the committed changes of an erasure to a remote partition from its evidence."""
    objects, manifests = bucket.objects(), bucket.manifests(partition)
    live = {
        partition.part_key(segment, LOG_PART)
        for segment in manifests.segments(manifests.load())
        if segment.is_readable
    }
    done: dict[str, tuple[removal.Removal, dict[str, Any]]] = {}
    prefix = partition.evidence_key(f"{ERASURE_PREFIX}{request}-").removesuffix(".json")
    for info in objects.list(prefix.rpartition("/")[0]):
        if not info.key.startswith(prefix):
            continue
        for balance, change in _decode_evidence(bytes(objects.get(info.key)), info.key):
            before = change["before"]["key"]
            other = done.get(before)
            # A run that was killed between evidence and commit left a change that never happened:
            # of two changes to the same object, the one with a live output was committed.
            is_committed = other is None or other[1]["after"]["key"] not in live
            if before not in live and is_committed:
                done[before] = balance, change
    balances, changes = zip(*done.values(), strict=True) if done else ((), ())
    return PartitionErased(partition.partition, "cold", tuple(balances), tuple(changes))


def _decode_evidence(data: bytes, key: str) -> Iterator[tuple[removal.Removal, dict[str, Any]]]:
    try:
        document = json.loads(data)
        for number, (balance, change) in enumerate(
            zip(document["balances"], document["objects"], strict=True), 1
        ):
            for side in ("before", "after"):
                if not isinstance(change[side]["key"], str):
                    raise ValueError("an object without a key")
            yield removal.decode_removal(number, balance), change
    except (ValueError, KeyError, TypeError) as error:
        raise Corrupt(f"{key}: not evidence of an erasure: {error}") from error


def read_local_erased(
    fs: FileSystem, log: Log, request: str, changes: Sequence[dict[str, Any]]
) -> PartitionErased:
    """Reads the changes of an erasure to a local log; `changes` are the files of this run.

    A swap that was interrupted and completed by the next open is not marked as done in the removal
    log; it counts nevertheless.
    """
    entries = read_removal_log(fs, log.directory).entries
    live: LiveSegments | None = None
    balances: list[removal.Removal] = []
    for number, entry in enumerate(entries):
        balance = entry.removal
        is_ours = balance.kind is removal.RemovalKind.ERASURE and balance.rule.startswith(
            f"erasure {request}:"
        )
        if is_ours and not entry.is_done:
            live = live or LiveSegments(fs, log.directory, advance=ignore_progress)
            outcome = find_outcome(balance, entries[number + 1 :], live)
            is_ours = outcome is Outcome.DONE_UNMARKED
        if is_ours:
            balances.append(balance)
    return PartitionErased(log.topic_partition.partition, "hot", tuple(balances), tuple(changes))


# Documents


class _DocumentKind(StrEnum):
    """The folder of a document in the remote tier, and part of its file name in a log directory."""

    RECEIPT = "receipt"
    REQUEST = "erasure"


@dataclass(frozen=True, slots=True)
class _StoredDocument:
    """The location of a document in the remote tier."""

    objects: ObjectStore
    key: str

    @property
    def name(self) -> str:
        return f"{self.objects.name}/{self.key}"

    def find(self) -> bytes | None:
        try:
            return bytes(self.objects.get(self.key))
        except ObjectNotFound:
            return None

    def put(self, data: bytes) -> None:
        self.objects.put(self.key, data)

    def remove(self) -> None:
        self.objects.delete([self.key])


@dataclass(frozen=True, slots=True)
class _LocalDocument:
    """The location of a document in a log directory."""

    fs: FileSystem
    name: str

    def find(self) -> bytes | None:
        return self.fs.read(self.name) if self.fs.exists(self.name) else None

    def put(self, data: bytes) -> None:
        write_atomically(self.fs, self.name, data)

    def remove(self) -> None:
        if self.fs.exists(self.name):
            self.fs.remove(self.name)


_DocumentLocation = _StoredDocument | _LocalDocument


class ErasureDocuments:
    """The stored receipt and request of one erasure, for each of its topics."""

    def __init__(
        self, targets: ErasureTargets, topics: Sequence[TopicTarget], request: ErasureRequest
    ) -> None:
        self._targets = targets
        self._topics = topics
        self._request = request

    def check(self) -> None:
        """Raises InvalidRequest if the id belongs to an erasure with another request."""
        for kind in _DocumentKind:
            for location in self._reachable(kind):
                data = location.find()
                if data is not None:
                    self._compare(_read_request(data, location.name), location, kind)

    def _compare(
        self, recorded: dict[str, Any], location: _DocumentLocation, kind: _DocumentKind
    ) -> None:
        id = self._request.id
        if other := self._request.find_difference(recorded):
            raise InvalidRequest(
                f"erasure {id} was of other {other}, as {location.name} says: give those, or "
                "another --id; nothing was changed"
            )
        if kind is _DocumentKind.RECEIPT and not has_digests(recorded):
            raise InvalidRequest(
                f"erasure {id} has its receipt, {location.name}, which lists no digests: that it "
                "was of the same keys cannot be checked; take another --id, nothing was changed"
            )

    def put_request(self, salt: bytes) -> None:
        """Stores the request, before the first change."""
        document = {
            "kind": _REQUEST_KIND,
            "format": _FORMAT,
            "erasure": self._request.id,
            "request": self._request.describe(salt),
        }
        for location in self._write_locations(_DocumentKind.REQUEST):
            location.put(encode_receipt(document))

    def put_receipt(self, document: dict[str, Any]) -> tuple[str, ...]:
        """Stores the receipt for every topic and removes the request; returns the locations."""
        locations = self._write_locations(_DocumentKind.RECEIPT)
        for location in locations:
            location.put(encode_receipt(document))
        self.remove_request()
        return tuple(location.name for location in locations)

    def remove_request(self) -> None:
        """Removes the request, once a receipt replaces it or if nothing was changed."""
        for location in self._reachable(_DocumentKind.REQUEST):
            location.remove()

    def _write_locations(self, kind: _DocumentKind) -> list[_DocumentLocation]:
        """One location for each topic in the remote tier, and one for all local topics."""
        remote = list(self._remote_documents(kind))
        is_elsewhere = any(not topic.partitions for topic in self._topics)
        return [*remote, *list(self._local_documents(kind))[:1]] if is_elsewhere else remote

    def _reachable(self, kind: _DocumentKind) -> Iterator[_DocumentLocation]:
        """All possible locations: a local topic may have been copied to the remote tier since."""
        yield from self._remote_documents(kind)
        yield from self._local_documents(kind)

    def _remote_documents(self, kind: _DocumentKind) -> Iterator[_DocumentLocation]:
        for topic in self._topics:
            if topic.partitions:
                assert self._targets.remote is not None
                key = self._targets.object_key(topic, kind, self._request.id)
                yield _StoredDocument(self._targets.remote.bucket.objects(), key)

    def _local_documents(self, kind: _DocumentKind) -> Iterator[_DocumentLocation]:
        local = self._targets.local
        for directory in () if local is None else local.directories:
            assert local is not None
            yield _LocalDocument(local.fs, f"{directory}/varve-{kind}-{self._request.id}.json")


def _read_request(data: bytes, where: str) -> dict[str, Any]:
    try:
        document = json.loads(data)
        request: dict[str, Any] = document["request"]
        if not isinstance(request["topics"], list):
            raise ValueError("topics are missing")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise Corrupt(
            f"{where}: cannot be read as a document of an erasure ({error}): restore it from a "
            "copy, or take another --id"
        ) from None
    return request


def encode_receipt(document: dict[str, Any]) -> bytes:
    """Encodes a receipt as indented JSON."""
    return json.dumps(document, indent=1, ensure_ascii=False).encode() + b"\n"


def render_receipt(document: dict[str, Any]) -> str:
    """Renders a receipt as an HTML page; only the document and its signature are proof."""
    text = json.dumps(document, indent=1, ensure_ascii=False)
    return render_template("receipt.html", {SIGNATURE: None, **document, "document": text})


# Copies of a receipt outside the topics


def check_receipt_path(path: str) -> None:
    """Raises InvalidRequest if PATH.json and PATH.html cannot be written."""
    for file in _files(path):
        if os.path.isdir(file):
            raise InvalidRequest(f"--receipt: {file} is a directory; nothing was erased")
        if os.path.exists(file) and not os.access(file, os.W_OK):
            raise InvalidRequest(f"--receipt: {file} may not be written; nothing was erased")
        try:
            with tempfile.TemporaryFile(dir=os.path.dirname(os.path.abspath(file))):
                pass
        except OSError as error:
            raise InvalidRequest(
                f"--receipt: {file} cannot be written ({error.strerror}); nothing was erased"
            ) from None


def write_receipt(path: str, result: ErasureResult) -> None:
    """Writes PATH.json and PATH.html; raises Unavailable, which says that the erasure is done."""
    assert result.receipt is not None
    pages = (encode_receipt(result.receipt), render_receipt(result.receipt).encode())
    for name, data in zip(_files(path), pages, strict=True):
        try:
            with open(name, "wb") as file:
                file.write(data)
        except OSError as error:
            raise Unavailable(
                f"{name}: {error.strerror}; the erasure is done, and its receipt is at "
                f"{', '.join(result.receipt_places)}: copy it from there"
            ) from error


def _files(path: str) -> tuple[str, str]:
    plain = path.removesuffix(".json").removesuffix(".html")
    return f"{plain}.json", f"{plain}.html"
