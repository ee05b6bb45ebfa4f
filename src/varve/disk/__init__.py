"""The file system as an argument: real or in memory; atomic writes; errors."""

from varve.disk.file_system import (
    TEMPORARY_SUFFIX,
    Buffer,
    DiskProblem,
    File,
    FileInfo,
    FileSystem,
    Lock,
    classify_error,
    copy_range,
    describe_error,
    hold_lock,
    make_durable_directory,
    sync_each,
    to_store_error,
    write_atomically,
    write_file,
)
from varve.disk.json_document import JsonDocument
from varve.disk.memory import MemoryFileSystem
from varve.disk.real import RealFileSystem
from varve.foundation.errors import PowerLoss

__all__ = [
    "TEMPORARY_SUFFIX",
    "Buffer",
    "DiskProblem",
    "File",
    "FileInfo",
    "FileSystem",
    "JsonDocument",
    "Lock",
    "MemoryFileSystem",
    "PowerLoss",
    "RealFileSystem",
    "classify_error",
    "copy_range",
    "describe_error",
    "hold_lock",
    "make_durable_directory",
    "sync_each",
    "to_store_error",
    "write_atomically",
    "write_file",
]
