"""MinIO keeps every promise of `varve.object_store.ObjectStore`: the contract suite once more."""

import secrets

import pytest

# All of the suite, also what is added to it later.
from tests.contract.object_store.test_object_store_contract import *  # noqa: F403
from tests.support.s3_server import BUCKET, S3Server
from varve.object_store import ObjectStore, open_object_store

pytestmark = pytest.mark.go

PART_BYTES = 5 << 20
"""The least that S3 takes, so that the suite's large objects have several parts."""


@pytest.fixture  # type: ignore[no-redef]  # takes the place of the suite's own
def bare_store(s3: S3Server) -> ObjectStore:
    settings = {**s3.settings, "part.bytes": PART_BYTES}
    return open_object_store(f"s3://{BUCKET}/{secrets.token_hex(8)}", settings)
