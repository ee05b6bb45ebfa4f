"""What a session over Spark Connect needs is asked for before Spark is."""

import socket
import sys

import pytest

from varve.foundation.errors import Unavailable
from varve.spark import session
from varve.spark.session import get_session


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def test_a_server_that_is_not_there_is_told_at_once() -> None:
    url = f"sc://127.0.0.1:{free_port()}/;user_id=varve"
    with pytest.raises(Unavailable, match=r"no Spark Connect server responds .* \(Connection ref"):
        get_session(master=url)
    with pytest.raises(Unavailable, match="correct the address"):
        get_session(master="sc://127.0.0.1:port")


def test_a_package_that_is_missing_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "grpc_status", None)
    with pytest.raises(Unavailable, match=r"needs grpc_status: run `pip install '.\[connect\]'`"):
        get_session(master="sc://127.0.0.1:1")


def test_an_archive_is_not_shipped_over_connect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "_check_connect", lambda url: None)
    with pytest.raises(Unavailable, match="varve job package"):
        get_session(master="sc://127.0.0.1:1", conf={"varve.package": "env.tar"})
