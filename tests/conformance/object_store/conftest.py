"""MinIO for tests marked `go`: built before they run, skipped with the reason when out of reach."""

from collections.abc import Iterator

import pytest

from tests.conformance.tools.go_programs import ProgramMissing
from tests.conformance.tools.minio import PASSWORD, USER, find_minio, running_minio
from tests.support.memory_directory import memory_directory
from tests.support.s3_server import BUCKET, S3Server

pytest.register_assert_rewrite(
    "tests.contract.object_store.test_object_store_contract",
    "tests.contract.object_store.test_restore_and_fsck",
    "tests.contract.object_store.test_s3",
    "tests.contract.object_store.test_two_processes",
    "tests.support.manifest_race",
)


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Server]:
    try:
        program = find_minio()
    except ProgramMissing as missing:
        pytest.skip(f"not run against MinIO: {missing}")
    with memory_directory() as directory, running_minio(program, directory) as endpoint:
        server = S3Server(endpoint, user=USER, password=PASSWORD)
        server.make_bucket(BUCKET)
        yield server
