"""A feed whose topic was erased from does not keep the rows that it has: they may be erased ones.

An erasure shows itself in a setting of the topic, which a feed reads when it opens and as it runs.
"""

from tests.support.feed_bench import BenchMaker, FeedBench, row_key_of
from varve.commit_log.settings import LAST_ERASURE
from varve.foundation.errors import Unavailable


def _erase(bench: FeedBench, mark: str = "first at 1") -> None:
    """Removes the first record behind the feed's back, as an erasure does."""
    bench.topic.partition(0).log.roll()
    bench.topic.partition(0).log.delete_records(1)
    bench.store.alter_topic(bench.topic.name, {LAST_ERASURE: mark})


def _read(bench: FeedBench) -> None:
    bench.put("ann", {"n": 1})
    bench.put("bob", {"n": 2})
    bench.open()
    bench.poll_all()
    bench.feed.checkpoint(bench.feed.mark())


def test_a_table_from_before_an_erasure_is_loaded_again(bench: FeedBench) -> None:
    _read(bench)
    bench.feed.close()
    _erase(bench)
    assert "records were erased from topic" in (bench.crash() or "")
    assert bench.rows().keys() == {row_key_of("bob")}
    bench.feed.checkpoint(bench.feed.mark())
    assert bench.crash() is None, "once"


def test_a_running_feed_notices_an_erasure_within_half_a_minute(bench: FeedBench) -> None:
    _read(bench)
    _erase(bench)
    assert bench.poll() == []
    bench.clock.advance(30_000)
    (transaction,) = bench.poll()
    assert transaction.reset is not None
    assert "first at 1" in transaction.reset.text
    assert not bench.feed.is_open


def test_a_feed_looks_at_once_when_its_server_is_back(make_bench: BenchMaker) -> None:
    """A server is stopped while records of its directory are erased."""
    bench = make_bench()
    _read(bench)
    _erase(bench)
    bench.put("cy", {"n": 3})

    def fail(*given: object, **named: object) -> None:
        raise Unavailable("the server does not answer")

    fetch, bench.feed._reader.fetch = bench.feed._reader.fetch, fail  # type: ignore[assignment]
    try:
        bench.poll()
    except Unavailable:
        bench.feed._reader.fetch = fetch  # type: ignore[method-assign]
    (transaction,) = bench.poll()
    assert transaction.reset is not None
