"""Makes the directory of a new shape.

Crash      the manifest comes last: a directory without it is no shape, and is wiped before use.
           Its name and the pointer's become durable together.
"""

from varve.disk import FileSystem, make_durable_directory
from varve.foundation.errors import InvalidRequest
from varve.shapes.storage.layout import log_directory, metadata_directory, shape_directory
from varve.shapes.storage.manifest import Manifest, manifest_path, write_manifest
from varve.shapes.storage.pointer import create_pointer


def create_directory(fs: FileSystem, root: str, handle: str) -> str:
    """Makes it durably, empty; raises InvalidRequest when the shape exists, OSError."""
    directory = shape_directory(root, handle)
    if fs.exists(manifest_path(directory)):
        raise InvalidRequest(f"shape {handle} exists in {root}: a handle is used once")
    if fs.exists(directory):
        fs.remove_tree(directory)
    make_durable_directory(fs, directory)
    fs.make_directory(log_directory(directory))
    fs.make_directory(metadata_directory(directory))
    fs.sync_directory(directory)
    create_pointer(fs, directory)
    write_manifest(fs, directory, Manifest())
    return directory
