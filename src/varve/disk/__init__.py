"""File system protocol: real, in memory, faulty; atomic write; directory sync; locks."""

from varve.disk.atomic_write import TEMPORARY_SUFFIX, write_atomically
from varve.disk.file_system import Buffer, File, FileInfo, FileSystem, Lock
from varve.disk.memory import MemoryFileSystem
from varve.disk.real import RealFileSystem

__all__ = [
    "TEMPORARY_SUFFIX",
    "Buffer",
    "File",
    "FileInfo",
    "FileSystem",
    "Lock",
    "MemoryFileSystem",
    "RealFileSystem",
    "write_atomically",
]
