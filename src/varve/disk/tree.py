"""A directory tree in memory with POSIX rules, used by the in-memory file systems.

Invariant  a change is planned first, with all checks, and then applied as plain assignments of
           names, so that the owner of the tree can also record it.
Threads    no lock: the file system that owns the tree holds its own around every call.
"""

import errno
import os
import posixpath
from dataclasses import dataclass, field

from varve.disk.file_system import FileInfo


@dataclass(slots=True, eq=False)
class FileNode:
    """A file's content, apart from its names and handles."""

    modified_ms: int
    content: bytearray = field(default_factory=bytearray)


@dataclass(slots=True, eq=False)
class DirectoryNode:
    """A directory: names to nodes."""

    modified_ms: int
    entries: dict[str, "Node"] = field(default_factory=dict)


Node = FileNode | DirectoryNode


@dataclass(frozen=True, slots=True)
class Assignment:
    """One name in one directory gets a node, or is removed (None)."""

    directory: DirectoryNode
    name: str
    node: Node | None


Change = tuple[Assignment, ...]
"""The assignments of one call, applied atomically."""


class Tree:
    """A tree of directories and files; every path starts at the root."""

    def __init__(self, root: DirectoryNode) -> None:
        self.root = root

    def get(self, path: str) -> Node:
        node: Node = self.root
        for name in _parts(path):
            if not isinstance(node, DirectoryNode):
                raise system_error(errno.ENOTDIR, path)
            child = node.entries.get(name)
            if child is None:
                raise system_error(errno.ENOENT, path)
            node = child
        return node

    def get_file(self, path: str) -> FileNode:
        node = self.get(path)
        if isinstance(node, DirectoryNode):
            raise system_error(errno.EISDIR, path)
        return node

    def get_directory(self, path: str) -> DirectoryNode:
        node = self.get(path)
        if not isinstance(node, DirectoryNode):
            raise system_error(errno.ENOTDIR, path)
        return node

    def find_file(self, path: str) -> FileNode | None:
        """The file, or None when its name could be created."""
        directory, name = self._parent(path)
        node = directory.entries.get(name)
        if isinstance(node, DirectoryNode):
            raise system_error(errno.EISDIR, path)
        return node

    def exists(self, path: str) -> bool:
        try:
            self.get(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def info(self, path: str) -> FileInfo:
        return _file_info(posixpath.basename(path.rstrip("/")), self.get(path))

    def scan(self, path: str) -> list[FileInfo]:
        entries = self.get_directory(path).entries
        return [_file_info(name, entries[name]) for name in sorted(entries)]

    def names(self, path: str) -> list[str]:
        return sorted(self.get_directory(path).entries)

    def plan_link(self, path: str, node: Node) -> Change:
        """Link a new node under a name; raises if the name exists or the parent does not."""
        directory, name = self._parent(path)
        if name in directory.entries:
            raise system_error(errno.EEXIST, path)
        return (Assignment(directory, name, node),)

    def plan_remove(self, path: str) -> Change:
        """Remove the name of a file."""
        self.get_file(path)
        directory, name = self._parent(path)
        return (Assignment(directory, name, None),)

    def plan_remove_directory(self, path: str) -> Change:
        """Remove the name of an empty directory."""
        if self.get_directory(path).entries:
            raise system_error(errno.ENOTEMPTY, path)
        directory, name = self._parent(path)
        return (Assignment(directory, name, None),)

    def plan_rename(self, source: str, target: str) -> Change:
        """Move a name; empty when source and target are the same."""
        source_directory, source_name = self._parent(source)
        target_directory, target_name = self._parent(target)
        node = self.get(source)
        replaced = target_directory.entries.get(target_name)
        if replaced is node:
            return ()
        self._check_rename(source, target, node, replaced)
        return (
            Assignment(source_directory, source_name, None),
            Assignment(target_directory, target_name, node),
        )

    def missing_directories(self, path: str) -> list[str]:
        """The paths, outermost first, that `make_directory` has to create."""
        missing = []
        parts = _parts(path)
        for count in range(1, len(parts) + 1):
            prefix = "/" + "/".join(parts[:count])
            if not self.exists(prefix):
                missing.append(prefix)
            elif not isinstance(self.get(prefix), DirectoryNode):
                raise system_error(errno.EEXIST if count == len(parts) else errno.ENOTDIR, path)
        return missing

    def apply(self, change: Change, now_ms: int) -> None:
        for assignment in change:
            entries = assignment.directory.entries
            if assignment.node is None:
                del entries[assignment.name]
            else:
                entries[assignment.name] = assignment.node
            assignment.directory.modified_ms = now_ms

    def _parent(self, path: str) -> tuple[DirectoryNode, str]:
        parts = _parts(path)
        if not parts:
            raise system_error(errno.EBUSY, path)
        try:
            return self.get_directory("/".join(parts[:-1])), parts[-1]
        except OSError as error:
            error.filename = path
            raise

    def _check_rename(self, source: str, target: str, node: Node, replaced: Node | None) -> None:
        inner, outer = _parts(target), _parts(source)
        if inner[: len(outer)] == outer:
            raise system_error(errno.EINVAL, target)
        if replaced is None:
            return
        if isinstance(replaced, DirectoryNode):
            if not isinstance(node, DirectoryNode):
                raise system_error(errno.EISDIR, target)
            if replaced.entries:
                raise system_error(errno.ENOTEMPTY, target)
        elif isinstance(node, DirectoryNode):
            raise system_error(errno.ENOTDIR, target)


def system_error(code: int, path: str) -> OSError:
    """The `OSError` subclass for an errno."""
    return OSError(code, os.strerror(code), path)


def overwrite(content: bytearray, position: int, data: bytes | memoryview) -> None:
    """Write into content as into a file: a gap before `position` becomes zeros."""
    if not data:
        return
    if position > len(content):
        content.extend(bytes(position - len(content)))
    content[position : position + len(data)] = data


def resize(content: bytearray, size: int) -> None:
    """Shorten content, or extend it with zeros."""
    if size < len(content):
        del content[size:]
    else:
        content.extend(bytes(size - len(content)))


def _parts(path: str) -> list[str]:
    normal = posixpath.normpath("/" + path)
    return [part for part in normal.split("/") if part]


def _file_info(name: str, node: Node) -> FileInfo:
    if isinstance(node, DirectoryNode):
        return FileInfo(name=name, size=0, modified_ms=node.modified_ms, is_directory=True)
    return FileInfo(
        name=name, size=len(node.content), modified_ms=node.modified_ms, is_directory=False
    )
