"""Object stores under test: a directory on the disk under test, and MinIO over loopback HTTP."""

import itertools
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from benchmarks.workspace import Workspace
from conformance.minio import PASSWORD, REGION, USER, MinioMissing, find_minio, running_minio
from varve.foundation.settings import GivenValue
from varve.object_store import ObjectStore, open_object_store

_BUCKET = "benchmark"


@dataclass(slots=True)
class Place:
    """Where buckets are: each `new_bucket` is empty and apart from the others."""

    name: str
    url: str
    settings: dict[str, GivenValue]
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def new_bucket(self) -> ObjectStore:
        return open_object_store(f"{self.url}/{next(self._numbers)}", self.settings)


@contextmanager
def open_places(workspace: Workspace) -> Iterator[list[Place]]:
    """The directory, and MinIO where `python -m conformance.minio` has built it."""
    with ExitStack() as stack:
        root = stack.enter_context(workspace.directory("bucket"))
        places = [Place("directory", f"file:{root}", {})]
        try:
            program = find_minio()
        except MinioMissing:
            yield places
            return
        directory = stack.enter_context(workspace.directory("minio"))
        endpoint = stack.enter_context(running_minio(program, directory))
        _make_bucket(endpoint)
        settings: dict[str, GivenValue] = {
            "endpoint": endpoint,
            "region": REGION,
            "access.key.id": USER,
            "secret.access.key": PASSWORD,
            "allow.http": True,
        }
        places.append(Place("S3 (MinIO)", f"s3://{_BUCKET}", settings))
        yield places


def _make_bucket(endpoint: str) -> None:
    boto3: Any = import_module("boto3")
    boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name=REGION,
        aws_access_key_id=USER,
        aws_secret_access_key=PASSWORD,
    ).create_bucket(Bucket=_BUCKET)
