"""Object stores under test: a directory on the disk under test, and MinIO over loopback HTTP.

MinIO is also put far away: every GET then takes `FAR_MS` longer, as from a cloud's store.
"""

import itertools
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, cast

from benchmarks.workspace import Workspace
from tests.conformance.tools.go_programs import ProgramMissing
from tests.conformance.tools.minio import (
    PASSWORD,
    REGION,
    USER,
    find_minio,
    running_minio,
)
from varve.foundation.settings import GivenValue
from varve.object_store import ObjectStore, open_object_store

FAR_MS = 20
_BUCKET = "benchmark"


class FarStore:
    """A store whose GETs take longer; all else is that of the store below."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._pause = threading.Event()

    def get(self, key: str) -> bytes:
        self._pause.wait(FAR_MS / 1000)
        return self._store.get(key)

    def get_range(self, key: str, start: int, end: int) -> memoryview:
        self._pause.wait(FAR_MS / 1000)
        return self._store.get_range(key, start, end)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


@dataclass(slots=True)
class Place:
    """Where buckets are: each `new_bucket` is empty and apart from the others."""

    name: str
    url: str
    settings: dict[str, GivenValue]
    is_far: bool = False
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def new_bucket(self) -> ObjectStore:
        store = open_object_store(f"{self.url}/{next(self._numbers)}", self.settings)
        return cast(ObjectStore, FarStore(store)) if self.is_far else store


@contextmanager
def open_places(workspace: Workspace) -> Iterator[list[Place]]:
    """The directory, and MinIO where `python -m tests.conformance.tools.minio` has built it."""
    with ExitStack() as stack:
        root = stack.enter_context(workspace.directory("bucket"))
        places = [Place("directory", f"file:{root}", {})]
        try:
            program = find_minio()
        except ProgramMissing:
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
        places.append(Place("S3", f"s3://{_BUCKET}/near", settings))
        places.append(Place(f"S3 + {FAR_MS} ms", f"s3://{_BUCKET}/far", settings, is_far=True))
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
