"""What was asked of object stores: requests and bytes, as they are added up over tasks."""

from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class StoreCount:
    """Requests of every kind, each attempt counted, and the bytes of objects."""

    requests: int = 0
    read_bytes: int = 0
    written_bytes: int = 0

    def __add__(self, other: "StoreCount") -> "StoreCount":
        return StoreCount(
            self.requests + other.requests,
            self.read_bytes + other.read_bytes,
            self.written_bytes + other.written_bytes,
        )

    def __sub__(self, other: "StoreCount") -> "StoreCount":
        return StoreCount(
            self.requests - other.requests,
            self.read_bytes - other.read_bytes,
            self.written_bytes - other.written_bytes,
        )

    def to_json(self) -> dict[str, int]:
        return asdict(self)
