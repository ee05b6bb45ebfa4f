"""Polls, checkpoints and views at the same time: each view is the state at its position."""

import queue
import threading
from pathlib import Path

from tests.support.feed_bench import build_feed
from tests.support.memory_topic import MemoryTopic
from varve.shapes.feed.initial_load import FullScan

_RECORDS = 1500
_KEYS = 40
_VIEWS_MIN = 5


def _state(count: int) -> dict[str, int]:
    """What the first records come to: every third takes its key away."""
    state: dict[str, int] = {}
    for number in range(count):
        key = f'"public"."orders"/"{number * 7 % _KEYS}"'
        if number % 3 == 2:
            state.pop(key, None)
        else:
            state[key] = number
    return state


def test_views_are_of_one_position_while_others_poll_and_write(tmp_path: Path) -> None:
    source = MemoryTopic(batch_records=10)
    for number in range(_RECORDS):
        value = None if number % 3 == 2 else b'{"n":%d}' % number
        source.append(0, b"%d" % (number * 7 % _KEYS), value)
    empty = MemoryTopic()
    feed = build_feed(source, tmp_path, rows=lambda reader: FullScan(empty))
    feed.open()
    marks: queue.Queue[int | None] = queue.Queue(maxsize=2)
    failures: list[BaseException] = []
    is_over = threading.Event()
    views = 0

    def write() -> None:
        try:
            while (mark := marks.get()) is not None:
                feed.checkpoint(mark)
        except BaseException as error:
            failures.append(error)
            raise

    def poll() -> None:
        try:
            while not feed.is_caught_up:
                feed.poll(max_records=10, wait_ms=0)
                marks.put(feed.mark(), timeout=30)
        except BaseException as error:
            failures.append(error)
            raise
        finally:
            marks.put(None, timeout=30)
            is_over.set()

    threads = [threading.Thread(target=work) for work in (write, poll)]
    for thread in threads:
        thread.start()
    while not is_over.is_set() or views < _VIEWS_MIN:
        with feed.view() as view:
            result = {key: int(row["n"]) for key, row in view.rows()}
            assert result == _state(view.position.tx)
        views += 1
    for thread in threads:
        thread.join(30)
    assert failures == []
    assert feed.unflushed_rows == 0
    feed.close()
    assert feed.open() is None
    assert feed.position.tx == _RECORDS
    feed.close()
