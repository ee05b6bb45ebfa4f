"""What cleaning asks of a segment that it reads: a closed one on the local disk, or a cold one.

Invariant  base offset, size and content never change.
"""

from typing import Protocol

from varve.disk import File


class InputSegment(Protocol):
    """A segment as the input of a run; its files may lie anywhere."""

    @property
    def base_offset(self) -> int: ...
    @property
    def size(self) -> int: ...
    def file(self) -> File:
        """The data file; whoever gave the segment closes it."""

    def path(self, kind: str) -> str:
        """Where the file of a kind lies, for messages and for opening it."""


class FileOpener(Protocol):
    """Opens files for reading: a file system, or what stands for one."""

    def open(self, path: str) -> File: ...
