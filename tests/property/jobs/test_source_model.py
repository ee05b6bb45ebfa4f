"""Whatever was written, rolled, copied and moved: the rows are what the store itself reads."""

import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.serving import Serving
from tests.support.source_topic import NAME, Row, SourceTopic, read_rows
from varve.foundation.settings import LONG_MAX
from varve.jobs.source.options import SourceFilters, learn_tier, parse_options
from varve.kafka_client.client import open_client
from varve.records import Codec

Script = list[tuple[Any, ...]]
EVERYTHING = SourceFilters()

KEYS = [b"", b"a", b"b", b"long key", None]
key = st.sampled_from(KEYS)
value = st.sampled_from([None, b"", b"1", b"x" * 700])
codec = st.sampled_from([Codec.NONE, Codec.ZSTD, Codec.LZ4])
plain = st.tuples(st.just("plain"), st.lists(st.tuples(key, value), min_size=1, max_size=5), codec)
part = st.tuples(st.just("part"), st.integers(1, 3), st.tuples(key, value))
end = st.tuples(st.just("end"), st.integers(1, 3), st.booleans())
other = st.tuples(st.sampled_from(["roll", "copy", "move", "clean"]))
steps = st.lists(st.one_of(plain, plain, part, end, other, other), max_size=25)


def play(topic: SourceTopic, script: Script) -> None:
    for step in script:
        topic.play(step)
    topic.flush()


def content(rows: list[Row]) -> list[tuple[Any, ...]]:
    return [(row["offset"], row["key"], row["value"]) for row in rows]


@settings(max_examples=20, suppress_health_check=list(HealthCheck))
@given(steps, st.integers(0, 30), st.integers(0, 30), st.sampled_from(KEYS[1:4]))
def test_rows_are_what_the_store_reads(
    script: Script, start: int, length: int, wanted: bytes
) -> None:
    with tempfile.TemporaryDirectory() as root, ExitStack() as held:
        topic = SourceTopic(Path(root), segment_bytes=1 << 20, index_interval_bytes=64)
        play(topic, script)
        held.callback(topic.close)
        serving = held.enter_context(Serving(topic.kit.store))
        for isolation in ("read_committed", "read_uncommitted"):
            model = [
                (one.offset, one.key, one.value) for one in topic.topic.read(isolation=isolation)
            ]
            rows = topic.rows(is_hot=True, isolation=isolation, splitBytes="300")
            assert content(rows) == model
            ranged = topic.rows(
                is_hot=True,
                isolation=isolation,
                startingOffset=str(start),
                endingOffset=str(start + length),
                splitBytes="300",
            )
            assert content(ranged) == [r for r in model if start <= r[0] < start + length]
            filters = SourceFilters(start_offset=start, end_offset=LONG_MAX)
            remote = content(topic.rows(filters, isolation=isolation)) if _is_copied(topic) else []
            assert remote == [r for r in model if start <= r[0]][: len(remote)]
            by_key = SourceFilters(keys=frozenset({wanted}))
            found = topic.rows(by_key, is_hot=True, isolation=isolation)
            assert content(found) == [r for r in model if r[1] == wanted]
            for through in ("true", "false"):
                more = {"isolation": isolation, "throughServer": through, "splitBytes": "300"}
                assert content(served_rows(serving, EVERYTHING, **more)) == model
                assert content(served_rows(serving, by_key, **more)) == content(found)
                more |= {"startingOffset": str(start), "endingOffset": str(start + length)}
                assert content(served_rows(serving, EVERYTHING, **more)) == content(ranged)


def served_rows(serving: Serving, filters: SourceFilters, /, **more: str) -> list[Row]:
    options = parse_options({"bootstrap.servers": serving.bootstrap, "topic": NAME, **more})
    assert options.server is not None
    try:
        return read_rows(learn_tier(options), filters)
    finally:
        open_client(options.server).close()


def _is_copied(topic: SourceTopic) -> bool:
    return bool(topic.kit.objects.list_directories(""))


@settings(max_examples=20, suppress_health_check=list(HealthCheck))
@given(steps, st.integers(0, 40), st.sampled_from(KEYS[1:4]))
def test_the_latest_state_is_what_a_dict_would_hold(
    script: Script, end: int, wanted: bytes
) -> None:
    keyed = [
        ("plain", [(k or b"", v) for k, v in step[1]], step[2]) if step[0] == "plain" else step
        for step in script
    ]
    with tempfile.TemporaryDirectory() as root:
        topic = SourceTopic(Path(root), cleanup_policy="compact", index_interval_bytes=64)
        play(topic, [step for step in keyed if step[0] != "part" or step[2][0] is not None])
        state: dict[bytes | None, tuple[object, ...]] = {}
        for one in topic.topic.read(isolation="read_committed"):
            if one.offset < end:
                state[one.key] = (one.offset, one.key, one.value)
        model = sorted(row for row in state.values() if row[2] is not None)
        rows = topic.rows(is_hot=True, mode="latest", endingOffset=str(end), splitBytes="300")
        assert sorted(content(rows)) == model
        found = topic.rows(
            SourceFilters(keys=frozenset({wanted})),
            is_hot=True,
            mode="latest",
            endingOffset=str(end),
        )
        assert content(found) == [row for row in model if row[1] == wanted]
        topic.close()
