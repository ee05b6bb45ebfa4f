"""The process that holds a lock file, as the file says: for the error that another process gets."""

import json
import os
from dataclasses import asdict, dataclass

OWNER_BYTES_MAX = 4096


@dataclass(frozen=True, slots=True)
class LockOwner:
    """A process, and for a server its command and the address of its listener."""

    pid: int
    program: str = ""
    address: str = ""

    def encode(self) -> bytes:
        return json.dumps(asdict(self)).encode() + b"\n"

    @staticmethod
    def decode(data: bytes) -> "LockOwner | None":
        """None for a file that varve did not write, such as Kafka's empty one."""
        try:
            fields = json.loads(data)
            return LockOwner(int(fields["pid"]), str(fields["program"]), str(fields["address"]))
        except (ValueError, TypeError, KeyError):
            return None

    def describe(self) -> str:
        """The owner and what to do about it."""
        if self.address:
            return (
                f"`{self.program}` (pid {self.pid}, {self.address}); stop it, or use "
                f"-b {self.address}"
            )
        if self.pid == os.getpid():
            return f"this process (pid {self.pid}), which has it open already; close that first"
        return f"process {self.pid}, which has it open with varve; stop it first"
