"""The manifests of a partition in the remote tier; imports without a broker."""

from varve.tiering.manifest.commit import ManifestEdit
from varve.tiering.manifest.manifest import Manifest
from varve.tiering.manifest.paths import RemotePath
from varve.tiering.manifest.segment import ObjectPart, RemoteSegment, SegmentState
from varve.tiering.manifest.store import ManifestStore, ObjectManifestStore

__all__ = [
    "Manifest",
    "ManifestEdit",
    "ManifestStore",
    "ObjectManifestStore",
    "ObjectPart",
    "RemotePath",
    "RemoteSegment",
    "SegmentState",
]
