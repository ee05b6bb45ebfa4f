"""File system protocol: real, in memory, faulty; atomic write; directory sync; locks."""

from varve.disk.atomic_write import TEMPORARY_SUFFIX, write_atomically
from varve.disk.directories import make_durable_directory
from varve.disk.faults import Step
from varve.disk.faulty import CrashMode, FaultyFileSystem
from varve.disk.file_system import Buffer, File, FileInfo, FileSystem, Lock, sync_each
from varve.disk.memory import MemoryFileSystem
from varve.disk.real import RealFileSystem
from varve.foundation.errors import PowerLoss

__all__ = [
    "TEMPORARY_SUFFIX",
    "Buffer",
    "CrashMode",
    "FaultyFileSystem",
    "File",
    "FileInfo",
    "FileSystem",
    "Lock",
    "MemoryFileSystem",
    "PowerLoss",
    "RealFileSystem",
    "Step",
    "make_durable_directory",
    "sync_each",
    "write_atomically",
]
