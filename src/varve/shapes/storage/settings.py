"""How much a shape's log buffers and reads at a time, and where it cuts.

Invariant  an instance that exists is valid.
"""

from dataclasses import dataclass

from varve.foundation.errors import InvalidSetting


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageSettings:
    """Sizes of one shape directory.

    `chunk_bytes` counts JSON only: a chunk closes with the entry that reaches it. `buffer_bytes`
    counts whole entries: the writer hands them to the file with the entry that reaches it.
    """

    chunk_bytes: int = 10 << 20
    buffer_bytes: int = 64 << 10
    read_bytes: int = 256 << 10

    def __post_init__(self) -> None:
        for name in ("chunk_bytes", "buffer_bytes", "read_bytes"):
            value = getattr(self, name)
            if not 1 <= value <= 1 << 40:
                raise InvalidSetting(
                    f"{name} {value} of a shape's storage must lie between 1 and {1 << 40}"
                )
