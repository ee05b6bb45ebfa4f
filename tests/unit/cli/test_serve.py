"""`varve serve` says where it listens, serves, and stops in order when it is told."""

import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

from tests.support.forked_commands import VARVE, CommandServers
from tests.support.varve_command import run_varve

_PATIENCE_SECONDS = 30


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("VARVE_")}


def test_it_serves_from_the_file_the_environment_and_options_until_it_is_told(
    tmp_path: Path,
) -> None:
    config = tmp_path / "server.properties"
    config.write_text("num.io.threads=8\nnode.id=5\nlisteners=PLAINTEXT://127.0.0.1:1\n")
    options = ["--listen", "127.0.0.1:0", "--metrics-port", "0", "--log-format", "json"]
    process = subprocess.Popen(
        [sys.executable, "-m", "varve", "serve", "-d", tmp_path / "data", "-c", config, *options],
        env=_environment() | {"VARVE_LISTENERS": "PLAINTEXT://127.0.0.1:2"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.fullmatch(
            r"varve serves PLAINTEXT://127\.0\.0\.1:(\d+); cluster \S{22}; 0 topics; "
            r"metrics at (http://127\.0\.0\.1:\d+)/metrics; started in \d+\.\d\d s\n",
            line,
        )
        assert found is not None, line
        with socket.create_connection(("127.0.0.1", int(found[1])), 5) as client:
            client.sendall(b"\0\0\0\x0a\0\x12\0\0\0\0\0\x07\xff\xff")
            assert client.recv(1000)[4:8] == b"\0\0\0\x07"
        refused = run_varve("topic", "list", "-d", tmp_path / "data", code=1)
        address = f"127.0.0.1:{found[1]}"
        held = f"`varve serve` (pid {process.pid}, {address}); stop it first"
        assert refused.stderr.strip().endswith(f"{held}, or use -b {address}")
        refused = run_varve("check", "-d", tmp_path / "data", code=1)
        assert refused.stderr.strip().endswith(held)
        refused = run_varve("serve", "-d", tmp_path / "data", code=1)
        assert refused.stderr.strip().endswith(f"{held}, or serve another directory with --dir")
        for page, part in (("ready", b"true"), ("health", b"true"), ("metrics", b"varve_server_")):
            with urllib.request.urlopen(f"{found[2]}/{page}", timeout=5) as answer:
                assert part in answer.read()
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=_PATIENCE_SECONDS)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0
    assert "num.io.threads" in errors
    assert '"message": "stopped"' in errors


def test_directories_of_the_environment_are_parted_by_colons(
    commands: CommandServers, tmp_path: Path
) -> None:
    ended = subprocess.run(
        [*VARVE, "serve", "--listen", "127.0.0.1:0"],
        env=_environment() | commands.variables | {"VARVE_DIR": f"{tmp_path}/a:{tmp_path}/a/b"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 1
    assert "be or contain the other" in ended.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_port_for_figures_that_is_taken_is_named(
    commands: CommandServers, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        options = ["--listen", "127.0.0.1:0", "--metrics-port", port]
        ended = subprocess.run(
            [*VARVE, "serve", "-d", tmp_path / "data", *options],
            env=_environment() | commands.variables,
            capture_output=True,
            text=True,
            timeout=_PATIENCE_SECONDS,
            check=False,
        )
    assert ended.returncode == 1
    told = " ".join(ended.stderr.split())
    assert f"cannot listen on http://127.0.0.1:{port}" in told
    assert "--metrics-port" in told
