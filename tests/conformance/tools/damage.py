"""Defects put into a partition directory by hand, so that two loaders can be compared on them."""

from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any


class Action(StrEnum):
    CUT = "cut"
    FLIP = "flip"
    REMOVE = "remove"
    EXTEND = "extend"


@dataclass(frozen=True, slots=True)
class Damage:
    """One defect of one file: `amount` bytes from the end to cut or flip, or zeros to add."""

    file: str
    action: Action
    amount: int = 0

    def apply(self, partition: Path) -> None:
        path = partition / self.file
        data = path.read_bytes()
        match self.action:
            case Action.CUT:
                path.write_bytes(data[: len(data) - self.amount])
            case Action.FLIP:
                position = len(data) - self.amount
                flipped = bytes([data[position] ^ 0x40])
                path.write_bytes(data[:position] + flipped + data[position + 1 :])
            case Action.REMOVE:
                path.unlink()
            case Action.EXTEND:
                path.write_bytes(data + bytes(self.amount))

    def encode(self) -> dict[str, Any]:
        return asdict(self)


def decode_damage(fields: dict[str, Any]) -> Damage:
    """The defect that `Damage.encode` described."""
    return Damage(fields["file"], Action(fields["action"]), fields["amount"])
