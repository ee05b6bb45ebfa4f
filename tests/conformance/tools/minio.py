"""MinIO, a second S3 server beside moto: built once from its pinned Go module, run on loopback.

    python -m tests.conformance.tools.minio

builds it, or says why it cannot be had; `make conformance` does that before its tests.
"""

import os
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.conformance.tools.go_programs import ProgramMissing, build_program, cached_program
from tests.conformance.tools.program import Program
from tests.support.kafka_server import HOST, ReservedPort

MODULE: Final = "github.com/minio/minio"
VERSION: Final = "v0.0.0-20260212201848-7aac2a2c5b7c"
USER: Final = "varve-conformance"
PASSWORD: Final = "not-a-secret"
REGION: Final = "us-east-1"


def find_minio() -> Path:
    """The program, if it was built before."""
    program = _target()
    if not program.is_file():
        raise ProgramMissing(
            f"{program} has not been built; `python -m tests.conformance.tools.minio` builds it, "
            "which needs Go and takes some minutes the first time"
        )
    return program


def build_minio() -> Path:
    """The program, built now unless it was before."""
    return build_program(_target(), ["-ldflags=-s -w", f"{MODULE}@{VERSION}"], release="1.24")


def _target() -> Path:
    return cached_program(f"minio-{VERSION}", "minio")


@contextmanager
def running_minio(program: Path, directory: Path) -> Iterator[str]:
    """A server with an empty directory for its own; gives its endpoint and ends it at the end."""
    server = Program(directory / "output")
    with ReservedPort() as port:
        endpoint = f"http://{HOST}:{port.number}"
        command = [program, "server", "--quiet", "--address", endpoint.removeprefix("http://")]
        server.start(
            [*command, directory / "data"],
            lambda: _answers(endpoint),
            env=_environment(directory),
        )
        try:
            yield endpoint
        finally:
            server.stop()


def _environment(directory: Path) -> dict[str, str]:
    """Nothing of ours but the path: no proxies, no settings, and no calls to the outside."""
    return {
        "PATH": os.environ.get("PATH", ""),
        "HOME": str(directory),
        "MINIO_ROOT_USER": USER,
        "MINIO_ROOT_PASSWORD": PASSWORD,
        "MINIO_BROWSER": "off",
        "MINIO_SITE_REGION": REGION,
        "MINIO_UPDATE": "off",
    }


def _answers(endpoint: str) -> bool:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        opener.open(f"{endpoint}/minio/health/ready", timeout=5).close()
    except OSError:
        return False
    return True


def main() -> None:
    """Builds MinIO; without it there are fewer tests, which is said and is no failure."""
    if not _target().is_file():
        print("building MinIO, once; this takes some minutes", file=sys.stderr)
    try:
        print(f"MinIO {VERSION}: {build_minio()}")
    except ProgramMissing as missing:
        print(f"SKIPPED the tests against MinIO, a second S3 server: {missing}", file=sys.stderr)


if __name__ == "__main__":
    main()
