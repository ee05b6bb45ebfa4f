"""docs/how-to/deduplicate.md, ids: a test for each sentence."""

import json
from typing import Any

from tests.support.dedup_contract import ContractBench, T, make_rules
from tests.support.window_dedup import fold_id
from varve.records import Record


def passed(by: str, *records: Record) -> list[int]:
    """The places of the records that pass, all of one time."""
    bench = ContractBench(make_rules(by))
    marked = [
        Record(item.key, item.value, (*item.headers, ("n", b"%d" % place)), T)
        for place, item in enumerate(records)
    ]
    bench.add(*marked)
    bench.run()
    return [int(item.headers[-1][1] or b"") for item in bench.records()]


def with_key(key: bytes | None) -> Record:
    return Record(key, b"")


def with_header(*values: bytes | None) -> Record:
    return Record(b"k", b"", tuple(("id", value) for value in values))


def with_field(value: Any) -> Record:
    return Record(b"k", json.dumps({"order": {"id": value}}).encode())


def test_d1_where_an_id_is() -> None:
    """D1 The id of a record is its key, the last header with a given name, or a field of its JSON
    value, as `--by` selects.
    """
    assert passed("key", with_key(b"a"), with_key(b"b"), with_key(b"a")) == [0, 1]
    options = (with_header(b"a", b"x"), with_header(b"b", b"x"), with_header(b"x", b"a"))
    assert passed("header:id", *options) == [0, 2]
    assert passed("field:order.id", *map(with_field, ("a", "b", "a"))) == [0, 1]


def test_d2_every_byte_counts() -> None:
    """D2 Ids are compared byte by byte: ids that differ in a byte or in length are different."""
    ids = [b"a", b"A", b"a ", b"a\0", b"\0a", b"a" * 16, b"a" * 17, b"a" * 18, b"a" * 40, b"a" * 41]
    assert passed("key", *map(with_key, ids)) == list(range(len(ids)))
    assert passed("key", *map(with_key, ids + ids)) == list(range(len(ids)))


def test_d3_a_field_is_its_text() -> None:
    """D3 A field that is not a string is compared as its JSON text, so the number 1 and the string
    "1" are the same id; numbers with a fraction or an exponent are compared as doubles.
    """
    options = [1, "1", True, "true", {"a": 1}, '{"a":1}', 1.5, "1.5"]
    assert passed("field:order.id", *map(with_field, options)) == [0, 2, 4, 6]
    texts = (b'{"order":{"id":%s}}' % item for item in (b"2.50", b"2.5", b"25e-1", b"3"))
    assert passed("field:order.id", *(Record(b"k", item) for item in texts)) == [0, 3]


def test_d4_no_id() -> None:
    """D4 A record has no id if its key is null, if the header is null or missing, if its value is
    not JSON, or if the field is null, missing or not UTF-8; bytes after the JSON value are ignored.
    """
    assert passed("key", *[with_key(None)] * 2) == [0, 1]
    nothing = [with_header(), with_header(None), with_header(b"a", None)]
    assert passed("header:id", *nothing * 2) == [*range(6)]
    options = [with_field(None), Record(b"k", b"no json"), Record(b"k", b"{}"), Record(b"k", None)]
    assert passed("field:order.id", *options * 2) == [*range(8)]
    latin = [Record(b"k", b'{"order":{"id":"M%sller"}}' % item) for item in (b"\xfc", b"\xf6")]
    assert passed("field:order.id", *latin) == [0, 1]
    followed = with_field("x")
    assert passed("field:order.id", followed, Record(b"k", (followed.value or b"") + b" {")) == [0]


def test_d5_an_empty_id() -> None:
    """D5 An empty key, header or string is an id."""
    assert passed("key", with_key(b""), with_key(b"")) == [0]
    assert passed("header:id", with_header(b""), with_header(b"")) == [0]
    assert passed("field:order.id", with_field(""), with_field("")) == [0]


def test_d6_long_ids_are_hashed() -> None:
    """D6 Ids of up to 16 bytes are compared as they are, longer ones by a 128-bit hash with a
    secret that each partition of a deduplication draws at random.
    """
    bench = ContractBench(partitions=2)
    bench.put((b"a", T))
    bench.put((b"a", T), partition=1)
    bench.run()
    first, second = (bench.progress(item).secret_words for item in range(2))
    assert first != second
    words, kinds = fold_id(b"exactly sixteen.", first)
    assert (words.tobytes(), kinds.tolist()) == (b"exactly sixteen.", [16])
    long_id = b"exactly sixteen.+"
    words, kinds = fold_id(long_id, first)
    assert (words.nbytes, kinds.tolist()) == (16, [17])
    assert words.tobytes() != fold_id(long_id, second)[0].tobytes()
