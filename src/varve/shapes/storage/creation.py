"""Makes the directory of a new shape.

Crash      the manifest comes last: a directory without it is no shape, and is wiped before use.
           Its name and the pointer's become durable together.
"""

import posixpath

from varve.disk import FileSystem
from varve.foundation.errors import InvalidRequest
from varve.shapes.storage.layout import log_directory, metadata_directory, shape_directory
from varve.shapes.storage.manifest import Manifest, manifest_path, write_manifest
from varve.shapes.storage.pointer import create_pointer


def create_directory(file_system: FileSystem, root: str, handle: str) -> str:
    """Makes it durably, empty; raises InvalidRequest when the shape exists, OSError."""
    directory = shape_directory(root, handle)
    if file_system.exists(manifest_path(directory)):
        raise InvalidRequest(f"shape {handle} exists in {root}: a handle is used once")
    if file_system.exists(directory):
        file_system.remove_tree(directory)
    missing = _missing_parents(file_system, directory)
    file_system.make_directory(log_directory(directory))
    file_system.make_directory(metadata_directory(directory))
    file_system.sync_directory(directory)
    for parent in missing:
        file_system.sync_directory(posixpath.dirname(parent) or ".")
    create_pointer(file_system, directory)
    write_manifest(file_system, directory, Manifest())
    return directory


def _missing_parents(file_system: FileSystem, path: str) -> list[str]:
    """The directories that making this one makes, itself first."""
    missing = []
    while path and not file_system.exists(path):
        missing.append(path)
        path = posixpath.dirname(path)
    return missing
