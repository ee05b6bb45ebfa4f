"""The files and directories of a simulated disk, with their synced and their unsynced state.

Invariant  `content` and `entries` are what the running system sees, `durable` is what was synced.
           The unsynced writes of a file, and the journal of directory changes, applied to the
           durable state give the visible state.
Crash      unsynced writes reach the disk by sector and in any order, sizes in the order they were
           set; directory changes reach it as a prefix per directory, each change as a whole.
Threads    no lock here: the file system that owns the nodes holds its lock around every call.
"""

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from varve.disk.tree import Assignment, Change, DirectoryNode, FileNode, Node, overwrite, resize

SECTOR_BYTES = 512
"""The unit that a disk writes as a whole."""

SECTOR_SURVIVAL_SHARES = (0.0, 0.5, 0.9, 1.0)
"""Probabilities that an unsynced sector survives; one is drawn per file."""


class UnsyncedWrite(NamedTuple):
    """Bytes that the running system sees and the disk may not."""

    position: int
    data: bytes


class UnsyncedResize(NamedTuple):
    """A size set by truncate."""

    size: int


@dataclass(slots=True, eq=False)
class DiskFile(FileNode):
    """A file with its synced content and the operations since."""

    durable: bytearray = field(default_factory=bytearray)
    durable_modified_ms: int = 0
    unsynced: list[UnsyncedWrite | UnsyncedResize] = field(default_factory=list)

    def write(self, position: int, data: bytes) -> None:
        overwrite(self.content, position, data)
        self.unsynced.append(UnsyncedWrite(position, data))

    def resize(self, size: int) -> None:
        resize(self.content, size)
        self.unsynced.append(UnsyncedResize(size))

    def sync(self) -> None:
        for operation in self.unsynced:
            if isinstance(operation, UnsyncedWrite):
                overwrite(self.durable, operation.position, operation.data)
            else:
                resize(self.durable, operation.size)
        self.unsynced.clear()
        self.durable_modified_ms = self.modified_ms

    def state(
        self,
    ) -> tuple[int, bytearray, bytearray, int, list[UnsyncedWrite | UnsyncedResize]]:
        return (
            self.modified_ms,
            self.content,
            self.durable,
            self.durable_modified_ms,
            self.unsynced,
        )

    def lose_unsynced(self) -> None:
        """A failed sync: Linux marks the pages clean, so no later sync writes them again."""
        self.unsynced.clear()

    def surviving_content(self, source: random.Random) -> bytearray:
        """The content that a power loss may leave.

        The sizes of the first operations survive, so a file may be long without its data. After a
        truncation that did not survive no write does: its blocks were not free for reuse yet.
        """
        content = bytearray(self.durable)
        surviving_size_count = source.randint(0, len(self.unsynced))
        share = source.choice(SECTOR_SURVIVAL_SHARES)
        for number, operation in enumerate(self.unsynced):
            has_size = number < surviving_size_count
            if isinstance(operation, UnsyncedResize):
                if has_size:
                    resize(content, operation.size)
                elif operation.size < len(content):
                    break
                continue
            end = operation.position + len(operation.data)
            if has_size and len(content) < end:
                resize(content, end)
            for start, data in _sectors(operation):
                if source.random() < share and start < len(content):
                    overwrite(content, start, data[: len(content) - start])
        return content


@dataclass(slots=True, eq=False)
class DiskDirectory(DirectoryNode):
    """A directory with its synced entries."""

    durable: dict[str, Node] = field(default_factory=dict)


class Journal:
    """Directory changes that are not yet synced, in the order they were made."""

    def __init__(self) -> None:
        self.changes: list[Change] = []

    def note(self, change: Change) -> None:
        self.changes.append(change)

    def commit(self, directory: DirectoryNode) -> None:
        """Makes a directory's changes durable, with the changes that moves tie to them."""
        numbers = self._required(directory, len(self.changes))
        for number in sorted(numbers):
            for assignment in self.changes[number]:
                assert isinstance(assignment.directory, DiskDirectory)
                _assign(assignment.directory.durable, assignment.name, assignment.node)
        self.changes = [c for number, c in enumerate(self.changes) if number not in numbers]

    def surviving_entries(self, source: random.Random) -> dict[DirectoryNode, dict[str, Node]]:
        """The entries after a power loss of every directory with unsynced changes."""
        touched = dict.fromkeys(a.directory for change in self.changes for a in change)
        survivors: set[int] = set()
        for directory in touched:
            numbers = [n for n, c in enumerate(self.changes) if directory in _directories(c)]
            count = source.randint(0, len(numbers))
            if count:
                survivors |= self._required(directory, numbers[count - 1] + 1)
        entries: dict[DirectoryNode, dict[str, Node]] = {}
        for number in sorted(survivors):
            for assignment in self.changes[number]:
                directory = assignment.directory
                assert isinstance(directory, DiskDirectory)
                if directory not in entries:
                    entries[directory] = dict(directory.durable)
                _assign(entries[directory], assignment.name, assignment.node)
        return entries

    def _required(self, directory: DirectoryNode, end: int) -> set[int]:
        """The changes before `end` that are durable if those of the directory are."""
        directories = {directory}
        numbers = set()
        for number in range(end - 1, -1, -1):
            touched = _directories(self.changes[number])
            if not directories.isdisjoint(touched):
                directories |= touched
                numbers.add(number)
        return numbers


def rebuild(
    directory: DiskDirectory,
    entries_of: Callable[[DiskDirectory], dict[str, Node]],
    content_of: Callable[[DiskFile], bytearray],
) -> DiskDirectory:
    """A new tree with only the chosen entries and contents, all of them durable."""
    built = DiskDirectory(directory.modified_ms)
    for name, node in sorted(entries_of(directory).items()):
        if isinstance(node, DiskDirectory):
            built.entries[name] = rebuild(node, entries_of, content_of)
        else:
            assert isinstance(node, DiskFile)
            content = content_of(node)
            built.entries[name] = DiskFile(
                modified_ms=node.durable_modified_ms,
                content=content,
                durable=bytearray(content),
                durable_modified_ms=node.durable_modified_ms,
            )
    built.durable = dict(built.entries)
    return built


class Copier:
    """Copies nodes with their visible and durable state; a node met twice is copied once.

    `earlier` holds copies of files that are shared with the new tree while they are still equal.
    """

    def __init__(self, earlier: dict[DiskFile, DiskFile] | None = None) -> None:
        self._copies: dict[Node, Node] = {}
        self._earlier = earlier

    def copy_torn(self, file: DiskFile, position: int, data: bytes, modified_ms: int) -> None:
        """Gives the copy of this file a write that the file itself does not have."""
        copied = _copy_file(file)
        copied.write(position, data)
        copied.modified_ms = modified_ms
        self._copies[file] = copied

    def copy_directory(self, directory: DirectoryNode) -> DiskDirectory:
        copied = self._copy(directory)
        assert isinstance(copied, DiskDirectory)
        return copied

    def copy_journal(self, journal: Journal) -> Journal:
        copied = Journal()
        copied.changes = [self._copy_change(change) for change in journal.changes]
        return copied

    def _copy_change(self, change: Change) -> Change:
        return tuple(
            Assignment(
                self.copy_directory(assignment.directory),
                assignment.name,
                None if assignment.node is None else self._copy(assignment.node),
            )
            for assignment in change
        )

    def _copy(self, node: Node) -> Node:
        copied = self._copies.get(node)
        if copied is not None:
            return copied
        if isinstance(node, DiskDirectory):
            directory = DiskDirectory(node.modified_ms)
            self._copies[node] = directory
            directory.entries = self._copy_entries(node.entries)
            directory.durable = self._copy_entries(node.durable)
            return directory
        assert isinstance(node, DiskFile)
        file = self._find_earlier(node) or _copy_file(node)
        self._copies[node] = file
        if self._earlier is not None:
            self._earlier[node] = file
        return file

    def _find_earlier(self, file: DiskFile) -> DiskFile | None:
        found = None if self._earlier is None else self._earlier.get(file)
        return found if found is not None and found.state() == file.state() else None

    def _copy_entries(self, entries: dict[str, Node]) -> dict[str, Node]:
        return {name: self._copy(node) for name, node in entries.items()}


def _copy_file(file: DiskFile) -> DiskFile:
    return DiskFile(
        modified_ms=file.modified_ms,
        content=bytearray(file.content),
        durable=bytearray(file.durable),
        durable_modified_ms=file.durable_modified_ms,
        unsynced=list(file.unsynced),
    )


class TreeDescription:
    """A tree and its journal as a value: equal for disks that no call can tell apart."""

    def __init__(self) -> None:
        self._numbers: dict[Node, int] = {}

    def describe(self, node: Node | None) -> tuple[object, ...] | int | None:
        """Everything of the node that a crash may leave; its number where it was met before."""
        if node is None:
            return None
        if node in self._numbers:
            return self._numbers[node]
        self._numbers[node] = len(self._numbers)
        if isinstance(node, DiskDirectory):
            entries = tuple((n, self.describe(e)) for n, e in sorted(node.entries.items()))
            durable = tuple((n, self.describe(e)) for n, e in sorted(node.durable.items()))
            return node.modified_ms, entries, durable
        assert isinstance(node, DiskFile)
        modified_ms, content, durable_content, durable_modified_ms, unsynced = node.state()
        return (
            modified_ms,
            bytes(content),
            bytes(durable_content),
            durable_modified_ms,
            tuple(unsynced),
        )

    def describe_journal(self, journal: Journal) -> tuple[object, ...]:
        return tuple(
            tuple((self.describe(one.directory), one.name, self.describe(one.node)) for one in c)
            for c in journal.changes
        )


def describe_visible(node: Node) -> tuple[object, ...]:
    """The tree as the running system sees it, as a value."""
    if isinstance(node, DirectoryNode):
        entries = ((name, describe_visible(one)) for name, one in sorted(node.entries.items()))
        return node.modified_ms, tuple(entries)
    return node.modified_ms, bytes(node.content)


def total_file_bytes(nodes: Iterable[Node]) -> int:
    """The size of all files below."""
    return sum(
        total_file_bytes(node.entries.values())
        if isinstance(node, DirectoryNode)
        else len(node.content)
        for node in nodes
    )


def _directories(change: Change) -> set[DirectoryNode]:
    return {assignment.directory for assignment in change}


def _assign(entries: dict[str, Node], name: str, node: Node | None) -> None:
    if node is None:
        del entries[name]
    else:
        entries[name] = node


def _sectors(write: UnsyncedWrite) -> Iterator[tuple[int, bytes]]:
    """The write cut at the disk's sector boundaries, each piece with its position."""
    position, data = write
    start = 0
    while start < len(data):
        end = start + SECTOR_BYTES - (position + start) % SECTOR_BYTES
        yield position + start, data[start:end]
        start = end
