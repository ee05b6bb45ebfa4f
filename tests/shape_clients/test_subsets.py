"""Subsets of the unmodified npm client while the topic changes.

A client of `changes_only` has the rows that it asked for, and every change since it began: whatever
it asks for meanwhile, it misses no change of another row. Carries S1.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest

from tests.support.npm_clients import NpmClients
from tests.support.shape_engine import wait_until
from tests.support.shape_server import ShapeServer
from tests.support.shape_topic import Rows, ShapeTopic
from tests.support.shape_traffic import Traffic

pytestmark = pytest.mark.node

_CLIENTS = 8
_ROUNDS = 6
_LAST = "last"
_MODES = pytest.mark.parametrize("is_sse", [False, True], ids=["long-poll", "sse"])


@contextmanager
def _changing(traffic: Traffic) -> Iterator[None]:
    """Changes the topic without a pause; an error of the thread is raised here."""
    ended = threading.Event()
    failures: list[BaseException] = []

    def run() -> None:
        try:
            while not ended.is_set():
                traffic.change(5)
                ended.wait(0.002)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    assert not failures, failures[0]


def _follow(npm: NpmClients, url: str, topic: ShapeTopic, names: list[str], *, sse: bool) -> None:
    """Clients that are up to date, and have no rows."""
    npm.follow(*names, url=url, params={"table": topic.name}, log="changes_only", liveSse=sse)
    npm.wait({}, *names)


def _ask_for_parts(npm: NpmClients, names: list[str]) -> None:
    """Each client asks for other rows than the ones before it."""
    for turn in range(_ROUNDS):
        for number, name in enumerate(names):
            part = (turn + number) % _ROUNDS
            low, high = part * 5000, part * 5000 + 5000
            npm.subset(
                name, where="grams >= $1 AND grams < $2", params={"1": str(low), "2": str(high)}
            )


def _check(npm: NpmClients, topic: ShapeTopic, names: list[str], before: Rows) -> None:
    """Each client has all rows that are new since `before`, and none as it was earlier."""
    topic.put(_LAST, {"state": "last", "grams": 0})
    topic.flush()
    rows = topic.rows()
    for name in names:
        found = _rows_with(npm, name, topic.message_key(_LAST))
        stale = {key: row for key, row in found.items() if row != rows.get(key)}
        missing = rows.keys() - before.keys() - found.keys()
        assert (stale, missing) == ({}, set()), name


def _rows_with(npm: NpmClients, name: str, key: str) -> Rows:
    """The rows of a client once it has that one."""
    found: Rows = {}

    def has_it() -> bool:
        found.clear()
        found.update(npm.look(name)["rows"])
        return key in found

    wait_until(has_it)
    return found


@_MODES
def test_a_client_that_asks_for_rows_misses_no_change_of_others(
    shape_server: ShapeServer, topic: ShapeTopic, npm: NpmClients, *, is_sse: bool
) -> None:
    traffic = Traffic(topic)
    traffic.add(200)
    names = [f"{topic.name}-{number}" for number in range(_CLIENTS)]
    _follow(npm, shape_server.url, topic, names, sse=is_sse)
    before = topic.rows()
    with _changing(traffic):
        _ask_for_parts(npm, names)
    _check(npm, topic, names, before)
    npm.leave(*names, refetches=0)


def test_a_client_whose_shape_is_replaced_while_it_asks_begins_again(
    shape_server: ShapeServer, topic: ShapeTopic, npm: NpmClients
) -> None:
    traffic = Traffic(topic)
    traffic.add(200)
    names = [f"{topic.name}-{number}" for number in range(_CLIENTS)]
    _follow(npm, shape_server.url, topic, names, sse=False)
    definition = {"table": topic.name, "log": "changes_only"}
    with _changing(traffic):
        for number, name in enumerate(names):
            httpx.delete(shape_server.url, params=definition).raise_for_status()
            npm.subset(name, where="grams > $1", params={"1": str(number * 1000)})
    _check(npm, topic, names, topic.rows())
    npm.leave(*names)
