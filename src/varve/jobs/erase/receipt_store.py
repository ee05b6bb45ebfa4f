"""Where the documents of erasures are kept: beside the topics they speak of.

A receipt is there when an erasure is over; until then the request is, from before the first change.

Layout     `receipt/<id>.json` and `erasure/<id>.json` below `<cluster>/<topic>.<topic id>/` for a
           topic in the cold tier, `varve-receipt-<id>.json` and `varve-erasure-<id>.json` in the
           log directory for one that is not. docs/formats/receipt.md
Invariant  an id stands for one request: another one under it is refused before anything changes,
           and no receipt is replaced by that of another request.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from varve.disk import FileSystem, write_atomically
from varve.foundation.errors import Corrupt, InvalidRequest, ObjectNotFound
from varve.jobs.erase.places import Places, TopicPlace
from varve.jobs.erase.request import ErasureRequest, has_digests
from varve.object_store import ObjectStore

_REQUEST_KIND: Final = "varve erasure request"
_FORMAT: Final = 1


class _Folder(StrEnum):
    """Of a document in the cold tier; part of its name elsewhere."""

    RECEIPT = "receipt"
    REQUEST = "erasure"


@dataclass(frozen=True, slots=True)
class _Object:
    """A document in the cold tier, if it is there."""

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
class _File:
    """The same in a log directory."""

    fs: FileSystem
    name: str

    def find(self) -> bytes | None:
        return self.fs.read(self.name) if self.fs.exists(self.name) else None

    def put(self, data: bytes) -> None:
        write_atomically(self.fs, self.name, data)

    def remove(self) -> None:
        if self.fs.exists(self.name):
            self.fs.remove(self.name)


_Spot = _Object | _File


class ErasureDocuments:
    """The receipt and the request of one erasure, at each of its topics."""

    def __init__(
        self, places: Places, topics: Sequence[TopicPlace], request: ErasureRequest
    ) -> None:
        self._places = places
        self._topics = topics
        self._request = request

    def check(self) -> None:
        """Raises InvalidRequest if the id is that of an erasure of something else."""
        for folder in _Folder:
            for spot in self._reachable(folder):
                data = spot.find()
                if data is not None:
                    self._compare(_read_request(data, spot.name), spot, folder)

    def _compare(self, told: dict[str, Any], spot: _Spot, folder: _Folder) -> None:
        id = self._request.id
        if other := self._request.find_difference(told):
            raise InvalidRequest(
                f"erasure {id} was of other {other}, as {spot.name} says: give those, or another "
                "--id; nothing was changed"
            )
        if folder is _Folder.RECEIPT and not has_digests(told):
            raise InvalidRequest(
                f"erasure {id} has its receipt, {spot.name}, which lists no digests: that it was "
                "of the same keys cannot be told; take another --id, nothing was changed"
            )

    def put_request(self, salt: bytes) -> None:
        """Puts on record what is asked, before the first change."""
        document = {
            "kind": _REQUEST_KIND,
            "format": _FORMAT,
            "erasure": self._request.id,
            "request": self._request.describe(salt),
        }
        for spot in self._spots(_Folder.REQUEST):
            spot.put(encode_receipt(document))

    def put_receipt(self, document: dict[str, Any]) -> tuple[str, ...]:
        """Puts the receipt to every topic, in the place of the request; gives where it is."""
        spots = self._spots(_Folder.RECEIPT)
        for spot in spots:
            spot.put(encode_receipt(document))
        self.remove_request()
        return tuple(one.name for one in spots)

    def remove_request(self) -> None:
        """Where a receipt tells it, or nothing was changed for it."""
        for spot in self._reachable(_Folder.REQUEST):
            spot.remove()

    def _spots(self, folder: _Folder) -> list[_Spot]:
        """One for each topic in the cold tier, and one for all others."""
        cold = list(self._cold(folder))
        is_elsewhere = any(not topic.homes for topic in self._topics)
        return [*cold, *list(self._hot(folder))[:1]] if is_elsewhere else cold

    def _reachable(self, folder: _Folder) -> Iterator[_Spot]:
        """Wherever one may be: a topic may have come to the cold tier since."""
        yield from self._cold(folder)
        yield from self._hot(folder)

    def _cold(self, folder: _Folder) -> Iterator[_Spot]:
        for topic in self._topics:
            if topic.homes:
                assert self._places.tier is not None
                key = self._places.object_key(topic, folder, self._request.id)
                yield _Object(self._places.tier.reach.objects(), key)

    def _hot(self, folder: _Folder) -> Iterator[_Spot]:
        hot = self._places.hot
        for directory in () if hot is None else hot.directories:
            assert hot is not None
            yield _File(hot.fs, f"{directory}/varve-{folder}-{self._request.id}.json")


def _read_request(data: bytes, where: str) -> dict[str, Any]:
    try:
        document = json.loads(data)
        request: dict[str, Any] = document["request"]
        if not isinstance(request["topics"], list):
            raise ValueError("topics are missing")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise Corrupt(
            f"{where}: cannot be read as a document of an erasure ({error}): put it back from a "
            "copy, or take another --id"
        ) from None
    return request


def encode_receipt(document: dict[str, Any]) -> bytes:
    """A receipt as it is kept, for people and programs to read."""
    return json.dumps(document, indent=1, ensure_ascii=False).encode() + b"\n"
