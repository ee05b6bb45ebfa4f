"""The server's log under attack."""

import logging

from varve.serving.process import LINES_MAX, WINDOW_SECONDS, LogRateLimit, TextFormatter

SERVER = "varve.kafka_server.connection"


def _record(second: float, *, name: str = SERVER, message: str = "refused") -> logging.LogRecord:
    return logging.makeLogRecord({"name": name, "msg": message, "created": second})


def test_a_message_passes_so_often_and_then_tells_what_was_left_out() -> None:
    limit = LogRateLimit()
    passed = [limit.filter(_record(1.0)) for _ in range(LINES_MAX + 5)]
    assert passed.count(True) == LINES_MAX
    assert limit.filter(_record(1.0, message="another"))
    later = _record(1.0 + WINDOW_SECONDS)
    assert limit.filter(later)
    assert TextFormatter().format(later).endswith("refused left_out_before=5")
    after = _record(1.0 + WINDOW_SECONDS)
    assert limit.filter(after)
    assert TextFormatter().format(after).endswith("refused")


def test_the_store_is_always_heard() -> None:
    limit = LogRateLimit()
    name = "varve.commit_log.log_directory"
    assert all(limit.filter(_record(1.0, name=name)) for _ in range(LINES_MAX * 2))


def test_a_clock_set_back_begins_anew() -> None:
    limit = LogRateLimit()
    for _ in range(LINES_MAX + 1):
        limit.filter(_record(1000.0))
    assert limit.filter(_record(10.0))
