"""Objects and files that an erasure touched, as its receipt names them."""

from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class StoredObject:
    """One version of an object or file; the checksum is the CRC-32C of its bytes, in hex.

    `etag` and `version` are the store's own words, None where it has none.
    """

    key: str
    size: int
    crc32c: str | None
    etag: str | None = None
    version: str | None = None

    def to_json(self) -> dict[str, object]:
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True, slots=True)
class ObjectChange:
    """An object, and the one that took its place."""

    before: StoredObject
    after: StoredObject

    def to_json(self) -> dict[str, object]:
        return {"before": self.before.to_json(), "after": self.after.to_json()}
