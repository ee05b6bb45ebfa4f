"""MinIO, a second S3 server beside moto: built once from its pinned Go module, run on loopback.

    python -m tests.conformance.tools.minio

builds it, or says why it cannot be had; `make conformance` does that before its tests.

Layout     <user's cache>/varve/minio-<version>/minio
Crash      the program is built aside and renamed, so a half-made one is never run.
"""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

MODULE: Final = "github.com/minio/minio"
VERSION: Final = "v0.0.0-20260212201848-7aac2a2c5b7c"
USER: Final = "varve-conformance"
PASSWORD: Final = "not-a-secret"
REGION: Final = "us-east-1"

BUILD_SECONDS: Final = 1800
START_SECONDS: Final = 30
STOP_SECONDS: Final = 10
_START_ATTEMPTS: Final = 3


class MinioMissing(Exception):
    """MinIO is not to be had; the message says why."""


def default_cache() -> Path:
    given = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(given) if Path(given).is_absolute() else Path.home() / ".cache"
    return base / "varve" / f"minio-{VERSION}"


def find_minio(cache: Path | None = None) -> Path:
    """The program, if it was built before."""
    program = (cache or default_cache()) / "minio"
    if not program.is_file():
        raise MinioMissing(
            f"{program} has not been built; `python -m tests.conformance.tools.minio` builds it, "
            "which needs Go and takes some minutes the first time"
        )
    return program


def build_minio(cache: Path | None = None) -> Path:
    """The program, built now unless it was before."""
    cache = cache or default_cache()
    try:
        return find_minio(cache)
    except MinioMissing:
        pass
    go = shutil.which("go")
    if go is None:
        raise MinioMissing("go is not on PATH; install Go 1.24 or newer")
    print(f"building MinIO into {cache}, once; this takes some minutes", file=sys.stderr)
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as aside:
        _run_go(go, aside)
        (Path(aside) / "minio").rename(cache / "minio")
    return cache / "minio"


def _run_go(go: str, aside: str) -> None:
    try:
        done = subprocess.run(
            [go, "install", "-trimpath", "-ldflags=-s -w", f"{MODULE}@{VERSION}"],
            env={**os.environ, "GOBIN": aside, "CGO_ENABLED": "0"},
            capture_output=True,
            text=True,
            timeout=BUILD_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise MinioMissing(f"go install was not done after {BUILD_SECONDS} s") from error
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if "go: downloading" not in line]
        tail = " ".join(lines)[-400:]
        raise MinioMissing(
            f"go could not build {MODULE}@{VERSION} (is the Go module proxy within reach?): {tail}"
        )


@contextmanager
def running_minio(program: Path, directory: Path) -> Iterator[str]:
    """A server with an empty directory for its own; gives its endpoint and ends it at the end."""
    server, endpoint = _start(program, directory)
    try:
        yield endpoint
    finally:
        _stop(server)


def _start(program: Path, directory: Path) -> tuple[subprocess.Popen[bytes], str]:
    """Another process may take a free port before the server does; then another one is tried."""
    output = directory / "output"
    for _ in range(_START_ATTEMPTS):
        port = _free_port()
        with output.open("wb") as file:
            server = subprocess.Popen(
                [
                    program,
                    "server",
                    "--quiet",
                    "--address",
                    f"127.0.0.1:{port}",
                    directory / "data",
                ],
                env=_environment(directory),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
            )
        endpoint = f"http://127.0.0.1:{port}"
        if _answers(server, endpoint):
            return server, endpoint
        _stop(server)
    raise RuntimeError(f"MinIO does not start: {output.read_text(errors='replace')[-1000:]}")


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


def _answers(server: subprocess.Popen[bytes], endpoint: str) -> bool:
    """Waits until the server takes requests; False when it ended or the time is over."""
    pause = threading.Event()
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    for _ in range(START_SECONDS * 20):
        if server.poll() is not None:
            return False
        try:
            opener.open(f"{endpoint}/minio/health/ready", timeout=5).close()
            return True
        except (urllib.error.URLError, OSError):
            pause.wait(0.05)
    return False


def _stop(server: subprocess.Popen[bytes]) -> None:
    server.terminate()
    try:
        server.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait(STOP_SECONDS)


def _free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def main() -> None:
    """Builds MinIO; without it there are fewer tests, which is said and is no failure."""
    try:
        print(f"MinIO {VERSION}: {build_minio()}")
    except MinioMissing as missing:
        print(f"SKIPPED the tests against MinIO, a second S3 server: {missing}", file=sys.stderr)


if __name__ == "__main__":
    main()
