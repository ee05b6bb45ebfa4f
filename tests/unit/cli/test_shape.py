"""The commands of `varve shape`, against a server in this process and in one of its own."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

import click
import pytest

import varve
from tests.support.fake_shapes import FakeEngine
from tests.support.http_stub import Answer, Asked, http_stub
from tests.support.shape_http import open_shape_http
from tests.support.varve_command import run_varve
from varve.cli.shape import parse_topics
from varve.cli.shape_client import ShapeClient
from varve.disk import RealFileSystem
from varve.foundation.clock import SystemClock
from varve.foundation.errors import InvalidRequest, InvalidSetting, Unavailable
from varve.http.shapes.access import Access
from varve.http.shapes.launch import (
    check_data_directory,
    make_config,
    make_data_directory,
    make_feed_factory,
)
from varve.kafka_client.address import ClusterAddress
from varve.kafka_client.client import KafkaClient
from varve.shapes.compaction.compactor import CompactionOutcome
from varve.shapes.opening import TopicOptions
from varve.testing.kafka_kit import KafkaKit


class Running:
    """A door in front of a fake engine, in a thread."""

    def __init__(self, access: Access) -> None:
        self.engine = FakeEngine()
        self.url = ""
        self._access = access
        self._is_ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self._thread.start()
        assert self._is_ready.wait(10)

    async def _run(self) -> None:
        self._end = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        async with open_shape_http(self._access) as http:
            self.engine = http.engine
            self.url = f"http://127.0.0.1:{http.server.port}"
            self._is_ready.set()
            await self._end.wait()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(10)


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    running = Running(Access())
    yield running
    running.close()


@pytest.fixture(scope="module")
def guarded() -> Iterator[Running]:
    running = Running(Access(token="t0k", admin_token="adm"))
    yield running
    running.close()


run = partial(run_varve, "shape", COLUMNS="150")


def test_a_shape_is_made_shown_listed_compacted_and_deleted(server: Running) -> None:
    at = ("--url", server.url)
    handle = run("create", "orders", "--where", "a = $1", "--param", "x", *at).stdout.strip()
    told = json.loads(
        run("create", "orders", "--replica", "full", "--columns", "key,a", "--json", *at).stdout
    )
    assert told["handle"] != handle
    listed = run("list", *at).stdout.splitlines()
    assert listed[0].split()[:3] == ["handle", "topic", "snapshot"]
    assert any(line.startswith(handle) for line in listed)
    shown = run("show", handle, *at).stdout
    assert "orders" in shown
    assert json.loads(run("show", handle, "--json", *at).stdout)["where"] == "\"a\" = 'x'"
    assert run("compact", handle, *at).stdout.startswith(f"compacted {handle} up to ")
    assert json.loads(run("compact", handle, "--json", *at).stdout)["outcome"] == "done"
    server.engine.outcome = CompactionOutcome.NOTHING
    assert run("compact", handle, *at).stdout.startswith("nothing to compact")
    server.engine.outcome = CompactionOutcome.DONE
    refused = run("delete", handle, *at, code=1).stderr
    assert "--yes" in refused
    assert run("delete", handle, "--yes", *at).stdout == f"deleted {handle}\n"
    assert "there is no such shape" in run("delete", handle, "--yes", *at, code=1).stderr
    left = run("list", "orders", "--json", *at).rows
    assert [(one["columns"], one["replica"]) for one in left] == [(["key", "a"], "full")]
    assert "no shapes" in run("list", "nothing", *at).stderr


def test_a_listed_shape_is_one_line_outside_of_a_terminal(server: Running) -> None:
    at, topic = ("--url", server.url), "t" * 120
    where = " OR ".join(f"a = {number}" for number in range(30))
    handle = run("create", topic, "--where", where, *at).stdout.strip()
    listed = run("list", topic, *at).stdout.splitlines()
    assert len(listed) == 2
    assert listed[1].split()[:2] == [handle, topic]
    assert listed[1].endswith(json.loads(run("show", handle, "--json", *at).stdout)["where"])


def test_compact_tells_of_a_shape_that_it_dropped(server: Running) -> None:
    at = ("--url", server.url)
    handle = run("create", "outgrown", *at).stdout.strip()
    server.engine.is_dropping = True
    told = run("compact", handle, *at).stdout
    server.engine.is_dropping = False
    assert told.endswith("the shape was dropped, because a new snapshot is smaller\n")


def test_tail_prints_rows_and_then_changes(server: Running) -> None:
    at = ("--url", server.url)
    assert run("tail", "items", "--once", *at).stdout == '+ 1 {"id": 1}\n'
    shape = next(one for one in server.engine.shapes() if one.definition.topic == "items")
    server.engine.add(
        shape,
        b'{"key":"1","value":{"id":1,"a":"\xc3\xa4"},"headers":{"operation":"update"}}',
        b'{"key":"1","value":{"id":1},"headers":{"operation":"delete"}}',
    )
    lines = run("tail", "items", "--limit", "3", *at).stdout.splitlines()
    assert lines == ['+ 1 {"id": 1}', '~ 1 {"id": 1, "a": "ä"}', '- 1 {"id": 1}']
    told = [
        json.loads(one)
        for one in run("tail", "items", "--once", "--json", *at).stdout.split("\n")[:-1]
    ]
    assert told[-1]["headers"]["control"] == "up-to-date"


def test_tail_prints_numbers_and_texts_as_they_came(server: Running) -> None:
    at = ("--url", server.url)
    run("create", "digits", *at)
    shape = next(one for one in server.engine.shapes() if one.definition.topic == "digits")
    value = '{"a": 12.50, "b": [1e400, -0.0], "c": NUMBER, "d": "\\ud800", "e": null}'
    value = value.replace("NUMBER", "9" * 5000)
    entry = '{"key": "1", "value": VALUE, "headers": {"operation": "update"}}'
    entry = entry.replace("VALUE", value)
    server.engine.add(shape, entry.encode())
    assert run("tail", "digits", "--limit", "2", *at).stdout.splitlines()[1] == f"~ 1 {value}"
    assert run("tail", "digits", "--once", "--json", *at).stdout.splitlines()[1] == (
        entry.replace("{", '{"type": "change", ', 1)
    )


def test_tail_begins_anew_when_its_shape_goes(server: Running) -> None:
    at = ("--url", server.url)
    run("create", "gone", *at)
    shape = next(one for one in server.engine.shapes() if one.definition.topic == "gone")
    threading.Timer(0.3, server.engine.drop, [shape]).start()
    result = run("tail", "gone", "--from", "now", "--limit", "1", *at)
    assert result.stdout == '+ 1 {"id": 1}\n'
    assert "starting again" in result.stderr


def _told(handle: str, status: int = 200) -> Answer:
    row = {"key": handle, "value": {}, "headers": {"operation": "insert"}}
    headers = {
        "content-type": "application/json",
        "access-control-expose-headers": "electric-handle",
        "electric-handle": handle,
        "electric-offset": "0_0",
    }
    return Answer(status, headers, json.dumps([row] if status == 200 else []).encode())


def test_tail_goes_on_behind_a_cache_that_keeps_the_rows_of_a_shape_that_is_gone() -> None:
    def answer(asked: Asked) -> Answer:
        query = dict(parse_qsl(urlsplit(asked.path).query))
        if query["offset"] == "-1":
            return _told(query.get("handle", "old"))
        return _told("new", 409) if query["handle"] == "old" else _told("end")

    with http_stub(answer) as stub:
        lines = run("tail", "items", "--limit", "3", "--url", stub.endpoint).stdout.splitlines()
    assert lines == ["+ old {}", "+ new {}", "+ end {}"]


def test_tail_ends_where_there_is_never_a_shape_to_follow() -> None:
    with http_stub(lambda _: _told("none", 409)) as stub:
        assert "409" in run("tail", "items", "--url", stub.endpoint, code=1).stderr
        assert len(stub.asked) < 20


def test_what_the_server_refuses_is_told_in_a_line(server: Running, guarded: Running) -> None:
    wrong = run("create", "orders", "--where", "a = $2", "--url", server.url, code=1).stderr
    assert wrong.startswith("error: ")
    assert "where" in wrong or "params" in wrong
    assert "missing" in run("create", "missing", "--url", server.url, code=1).stderr
    for token in ("a\nb", "\u20ac"):
        told = run("list", "--url", server.url, "--token", token, code=1).stderr
        assert "cannot be sent in a header" in told
    assert "requires a token" in run("list", "--url", guarded.url, code=1).stderr
    assert "requires a token" in run("list", "--url", guarded.url, "--token", "t0k", code=1).stderr
    run("create", "orders", "--url", guarded.url, "--token", "t0k")
    run("list", "--url", guarded.url, "--token", "adm")


def test_what_is_no_server_of_shapes_is_told_in_a_line() -> None:
    page = Answer(200, {"content-type": "text/html"}, b"<html>")
    other = Answer(200, {"content-type": "application/json"}, b"{}")
    commands = [
        ("list",),
        ("create", "orders"),
        ("show", "1"),
        ("compact", "1"),
        ("tail", "orders", "--once"),
    ]
    for answer in (page, other):
        with http_stub(lambda _, answer=answer: answer) as stub:  # type: ignore[misc]
            for command in commands:
                told = run(*command, "--url", stub.endpoint, code=1).stderr
                assert told == f"error: the server at {stub.endpoint} is not a shape server\n"


def test_tail_waits_as_long_as_it_is_told_or_a_second() -> None:
    away = Answer(503, {"retry-after": "0"}, b'{"message": "the broker is away"}')
    answers = [Answer(503, {"retry-after": "Wed, 21 Oct 2026 07:28:00 GMT"}, away.body)]
    answers += [away, away, _told("a")]
    with http_stub(lambda _: answers.pop(0)) as stub:
        result = run("tail", "items", "--limit", "1", "--url", stub.endpoint)
    assert result.stdout == "+ a {}\n"
    assert result.stderr == "the broker is away; retrying\n"


def test_what_is_said_of_single_topics() -> None:
    found = parse_topics(["a=id", "b=no"], ["b", "c=ends"], ["a=s3://bucket/snapshot"])
    assert found == {
        "a": TopicOptions("id", snapshot="s3://bucket/snapshot"),
        "b": TopicOptions("no", is_debezium=True),
        "c": TopicOptions(is_debezium=True, transactions="ends"),
    }
    assert len({one.signature for one in found.values()}) == 3


@pytest.mark.parametrize(
    ("key_columns", "debezium"), [(["a"], []), (["=id"], []), ([], ["="]), ([], ["a="])]
)
def test_what_lacks_a_side_is_refused(key_columns: list[str], debezium: list[str]) -> None:
    with pytest.raises(click.BadParameter, match="lacks one side; write TOPIC"):
        parse_topics(key_columns, debezium)


_CONFIG: Final[dict[str, Any]] = {
    "listen": "127.0.0.1:0",
    "data": Path("x"),
    "token": None,
    "admin_token": None,
    "shapes_file": None,
    "can_delete": True,
    "topics": {},
    "beside": [],
    "settings": {},
}


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"listen": "8080"}, "not an address"),
        ({"listen": "localhost:x"}, "not an address"),
        ({"listen": "127.0.0.1:0655350"}, "not an address"),
        ({"token": ""}, "--token is empty"),
        ({"settings": {"shapes.http.long.poll.ms": "0"}}, "long.poll.ms"),
        ({"settings": {"shapes.compaction.period.ms": "0"}}, "period.ms"),
        ({"settings": {"shapes.nothing": "1"}}, "shapes.nothing"),
    ],
)
def test_a_plan_that_cannot_be_is_refused(changed: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidSetting, match=told):
        make_config(**{**_CONFIG, **changed})


@pytest.mark.parametrize("name", ["VARVE_SHAPE_TOKEN", "VARVE_SHAPE_ADMIN_TOKEN"])
def test_an_empty_variable_is_no_token_and_lets_nobody_in(name: str, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    arguments = ["--dir", str(tmp_path / "data"), "--data", str(tmp_path / "shapes")]
    # Should it be taken, this ends the command before it serves.
    wrong = ["--listen", "nowhere"]
    assert f"{name} is empty" in run("serve", *arguments, *wrong, code=1, **{name: ""}).stderr


def test_shapes_have_a_directory_of_their_own(tmp_path: Path) -> None:
    logs, file = tmp_path / "data", tmp_path / "file"
    logs.mkdir()
    file.touch()
    for data in (logs, logs / "t-0", tmp_path / "shapes" / ".." / "data" / "shapes"):
        with pytest.raises(InvalidSetting, match="is inside log directory"):
            check_data_directory(data, [logs])
    check_data_directory(tmp_path / "shapes", [logs])
    for data in (file, file / "shapes"):
        with pytest.raises(InvalidSetting, match=f"--data {data} cannot be used"):
            make_data_directory(data)
    make_data_directory(tmp_path / "shapes")
    make_data_directory(tmp_path / "shapes")
    assert list(logs.iterdir()) == []


@pytest.mark.parametrize(
    ("names", "is_taken"),
    [
        ([], True),
        ([".lock", ".trash", "tables", "lost+found"], True),
        (["25", ".tmp"], True),
        (["registry.sqlite", "notes.txt"], True),
        ([".lock", "meta.properties", "t-0"], False),
        (["registry.sqlite", ".trash", "meta.properties"], False),
        (["notes.txt"], False),
    ],
)
def test_a_directory_of_others_is_not_taken(
    tmp_path: Path, names: list[str], is_taken: bool
) -> None:
    for name in names:
        (tmp_path / name).touch()
    if is_taken:
        make_data_directory(tmp_path)
        return
    with pytest.raises(InvalidSetting, match="belongs to another program"):
        make_data_directory(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == set(names)


def test_the_address_that_a_server_tells_is_one_for_commands() -> None:
    base = "http://127.0.0.1:1"
    for url in (base, f"{base}/", f"{base}/v1/shape", f"{base}/v1/shape/"):
        with ShapeClient(url, None) as client, pytest.raises(Unavailable, match=f"at {base}: "):
            client.ask("GET", "/v1/shapes")


def test_settings_reach_the_part_that_they_are_of() -> None:
    given = {
        "shapes.compaction": "false",
        "shapes.compaction.period.ms": "5",
        "shapes.http.shutdown.timeout.ms": "7",
    }
    config = make_config(**{**_CONFIG, "settings": given})
    assert not config.engine.compacts
    assert config.compaction.period_ms == 5
    assert config.http.shutdown_ms == 7


def test_a_directory_is_served_until_a_signal_and_again(tmp_path: Path) -> None:
    with varve.open(tmp_path / "data", maintain=False) as store:
        topic = store.create_topic("items", partitions=2)
        topic.append_many([(b"%d" % number, b'{"n":%d}' % number) for number in range(50)])
    command = [sys.executable, "-m", "varve", "shape", "serve", "--dir", str(tmp_path / "data")]
    command += ["--data", str(tmp_path / "shapes"), "--listen", "127.0.0.1:0", "-s", "shapes.max=9"]
    seen = []
    for _ in range(2):
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("varve serves shapes at http://127.0.0.1:"), process.communicate()
        url = line.split()[4].removesuffix("/v1/shape;")
        rows = run("tail", "items", "--once", "--where", "n < 40", "--url", url).stdout
        handle = run("create", "items", "--where", "n < 40", "--url", url).stdout
        seen.append((sorted(rows.splitlines()), handle))
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=30)
        assert process.returncode == 0, log
        assert "stopped" in log
    assert seen[0] == seen[1]
    assert len(seen[0][0]) == 40
    assert os.path.exists(tmp_path / "shapes" / "registry.sqlite")


@pytest.mark.parametrize("name", ["nothing", "no/topic", "..", "__consumer_offsets"])
def test_a_topic_that_is_not_there_has_no_feed(tmp_path: Path, name: str) -> None:
    with varve.open(tmp_path / "data", maintain=False) as store:
        maker = make_feed_factory(
            store, {}, str(tmp_path / "tables"), fs=RealFileSystem(), clock=SystemClock()
        )
        with pytest.raises(InvalidRequest, match="topic"):
            maker.make(name)
    assert not (tmp_path / "tables").exists()


def test_who_waits_for_a_broker_that_is_away_ends_with_the_server(tmp_path: Path) -> None:
    with KafkaKit() as kit:
        host, _, port = kit.bootstrap.rpartition(":")
        address = ClusterAddress(hosts=((host, int(port)),), timeout_ms=10_000)
        client = KafkaClient(address, threading.Event().wait)
        client.create_topic("items", partitions=1, settings={}, exist_ok=True)
        client.close()
        maker = make_feed_factory(
            address, {}, str(tmp_path / "tables"), fs=RealFileSystem(), clock=SystemClock()
        )
        feed = maker.make("items")
    began = time.monotonic()
    threading.Timer(0.3, maker.stop_waiting).start()
    with pytest.raises(Unavailable, match="stops"):
        feed.open()
    assert time.monotonic() - began < address.timeout_ms / 2000
    feed.close()
    maker.close()
