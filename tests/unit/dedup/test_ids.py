"""Ids of records: from keys, headers and fields, folded as the Spark job folds them.

Fields of JSON values have the answers of Spark 4's `get_json_object`.
"""

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]  # ships no types
import pytest

from tests.support.json_ids import FOUND, NOT_FOUND, NUMBERS
from tests.support.window_dedup import SECRET
from varve.dedup.ids import Arrivals, JsonField, fold_chunk
from varve.dedup.kernels.id_words import NO_ID
from varve.dedup.rules import parse_id_source
from varve.foundation.errors import Corrupt
from varve.kernels.batch_layout import RecordColumn
from varve.records import Batch, Codec, Record, RecordColumns, build_batch
from varve.spark.deduplication.deduplicate import ID, ROWS, TIME, Packer, decode_batch, read_ids

IDS = [b"", b"a", b"a\0", b"\0" * 16, b"sixteen bytes!!!", b"seventeen bytes!!", b"x" * 1_000, None]


def fold(records: list[Record], by: str = "key", codec: Codec = Codec.NONE) -> Arrivals:
    batch = build_batch(records, base_offset=40, codec=codec)
    return fold_chunk([Batch(batch).columns()], parse_id_source(by), SECRET)


def test_an_id_is_folded_alike_wherever_it_stands() -> None:
    many = fold([Record(key=key, value=b"") for key in IDS])
    for row, key in enumerate(IDS):
        one = fold([Record(key=key, value=b"")])
        assert (one.words[0].tolist(), one.kinds[0]) == (many.words[row].tolist(), many.kinds[row])


def ids_of(result: Arrivals) -> list[bytes | None]:
    """Ids of at most sixteen bytes back from their words."""
    data = result.words.astype("<u8").tobytes()
    return [
        None if kind == NO_ID else data[16 * row : 16 * row + kind]
        for row, kind in enumerate(result.kinds.tolist())
    ]


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_times_and_offsets_go_with_the_ids(codec: Codec) -> None:
    records = [Record(key=b"k", value=b"v" * 100, timestamp=time) for time in (7, 3, -1)]
    result = fold(records, codec=codec)
    assert (result.times.tolist(), result.offsets.tolist()) == ([7, 3, -1], [40, 41, 42])


def test_the_spark_job_folds_the_same_ids_to_the_same_words() -> None:
    packed = pa.RecordBatch.from_pydict(
        {"offset": range(len(IDS)), ID: pa.array(IDS, pa.binary()), TIME: range(len(IDS))}
    )
    (row,) = Packer((0,), SECRET).pack([packed])
    theirs = read_ids(decode_batch(row.column(ROWS)[0].as_buffer()))
    ours = fold([Record(key=key, value=b"") for key in IDS])
    assert (ours.words.tolist(), ours.kinds.tolist()) == (
        theirs.words.tolist(),
        theirs.kinds.tolist(),
    )


def test_the_last_header_of_a_name_is_the_id() -> None:
    headers: list[tuple[tuple[str, bytes | None], ...]] = [
        (("id", b"first"), ("other", b"x"), ("id", b"last")),
        (("id", b"value"), ("id", None)),
        (("ID", b"x"), ("i", b"y"), ("idd", b"z")),
        (),
        (("id", b""),),
        (("ï", b"x"), ("id", b"after")),
    ]
    records = [Record(key=b"k", value=b"", headers=item) for item in headers]
    assert ids_of(fold(records, "header:id")) == [b"last", None, None, None, b"", b"after"]
    assert ids_of(fold(records, "header:ï"))[5] == b"x"


def test_headers_that_break_their_format_are_corrupt() -> None:
    batch = build_batch([Record(key=b"k", value=b"", headers=(("id", b"v"),))], base_offset=40)
    columns = Batch(batch).columns()
    table = columns.table.copy()
    table[0, RecordColumn.HEADERS_COUNT] = 2
    with pytest.raises(Corrupt, match="offset 40 break their format"):
        fold_chunk([RecordColumns(columns.payload, table)], parse_id_source("header:id"), SECRET)


def test_chunks_are_joined_in_order_and_may_be_empty() -> None:
    parts = [
        Batch(
            build_batch([Record(key=b"k", value=b"", timestamp=time)], base_offset=time)
        ).columns()
        for time in (5, 6)
    ]
    result = fold_chunk(parts, parse_id_source("key"), SECRET)
    assert result.offsets.tolist() == [5, 6]
    assert result.take(np.array([False, True])).offsets.tolist() == [6]
    assert len(fold_chunk([], parse_id_source("key"), SECRET)) == 0


@pytest.mark.parametrize(("text", "identity"), FOUND)
def test_a_field_is_found_as_text(text: str, identity: str) -> None:
    assert JsonField("a").find(text.encode()) == identity.encode()


@pytest.mark.parametrize(("number", "identity"), NUMBERS)
def test_numbers_with_a_fraction_are_written_as_java_writes_them(
    number: str, identity: str
) -> None:
    assert JsonField("a").find(f'{{"a":{number}}}'.encode()) == identity.encode()


@pytest.mark.parametrize("text", NOT_FOUND, ids=range(len(NOT_FOUND)))
def test_what_is_no_json_or_has_no_such_field_has_no_id(text: str) -> None:
    assert JsonField("a").find(text.encode()) is None


def test_paths_go_through_objects_alone() -> None:
    field = JsonField("a.b")
    assert field.find(b'{"a":{"b":7}}') == b"7"
    assert field.find(b'{"a":{"b":null}}') is None
    assert field.find(b'{"a":[{"b":7}]}') is None
    assert field.find(b'{"a":"b"}') is None
    assert field.find(b'{"a":{"c":1},"a":{"b":8}}') == b"8"


def test_what_is_nested_too_deeply_has_no_id() -> None:
    assert JsonField("a").find(b"[" * 100_000) is None


def test_a_field_with_bytes_that_are_no_utf8_is_no_id() -> None:
    assert JsonField("a").find(b'{"a":"\xff"}') is None
    assert JsonField("a").find(b'{"a":"x","b":"\xff"}') == b"x"


def test_numbers_beyond_doubles_are_one_id_and_integers_end_at_4300_digits() -> None:
    field = JsonField("a")
    assert field.find(b'{"a":1e400}') == field.find(b'{"a":1e500}') == b'"Infinity"'
    assert field.find(b'{"a":%s}' % (b"7" * 4_300)) == b"7" * 4_300
    assert field.find(b'{"a":%s}' % (b"7" * 4_301)) is None
    assert field.find(b'{"a":1,"b":%s}' % (b"7" * 4_301)) is None
