"""A compacted log that waits to be put in front of the live one."""

from dataclasses import dataclass

from varve.shapes.offset import Offset


@dataclass(frozen=True, slots=True)
class CompactedLog:
    """It holds all entries up to `boundary`: the compacted log before, and the live one's bytes
    up to `position`. Its files lie in the log directory under `suffix`, durable.
    """

    boundary: Offset
    position: int
    suffix: str
