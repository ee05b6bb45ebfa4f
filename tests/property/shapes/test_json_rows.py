"""The kernel of JSON members accepts what RFC 8259 does, and rows keep what the text says."""

import json
import re
from decimal import Decimal
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from tests.support.rounds import machine_settings
from varve.shapes.feed.row import join_row, split_texts
from varve.shapes.kernels.json_text import DEPTH_MAX, split_messages

_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"')
_SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
)
_VALUES = st.recursive(
    _SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=12
)
_PIECES = st.sampled_from(
    [
        *[b"{", b"}", b"[", b"]", b",", b":", b'"', b"\\", b'"a"', b'"a":', b"1", b"0", b"-"],
        *[b".5", b"e", b"E+1", b"true", b"false", b"null", b" ", b"\n", b"\t", b"\x00", b"x"],
        *[b"\\u12", b"d800", b"\\ud800", b"\xc3\xa9", b"\xc3", b"\xed\xa0\x80"],
        *[b"\xf4\x90\x80\x80", b"\xef\xbb\xbf"],
    ]
)


def _refuse(text: str) -> None:
    raise ValueError(text)


def _load(data: bytes) -> Any:
    """What the standard library reads, without its leniency; raises ValueError."""
    return json.loads(data.decode(), parse_constant=_refuse, parse_int=Decimal, parse_float=str)


def _agrees(data: bytes) -> None:
    (found,) = split_texts([data])
    try:
        expected = _load(data)
    except ValueError:
        assert found is None
        return
    if isinstance(expected, dict):
        assert isinstance(found, dict)
        assert list(found) == list(expected)
        assert {name: _load(text) for name, text in found.items()} == expected
        assert _load(join_row(found)) == expected
        texts = list(found.values())
    else:
        assert isinstance(found, bytes)
        assert _load(found) == expected
        texts = [found]
    for text in texts:
        assert not re.search(rb"\s", _STRING.sub(b"", text))
        assert b"\n" not in text


@machine_settings(50)
@given(_VALUES, st.sampled_from([None, 0, 1]), st.booleans())
def test_whatever_json_is_written_is_split_and_joined(
    value: Any, indent: int | None, is_ascii: bool
) -> None:
    _agrees(json.dumps(value, indent=indent, ensure_ascii=is_ascii).encode(errors="replace"))


@machine_settings(150)
@given(st.lists(_PIECES, max_size=12).map(b"".join))
@example(b'{"a":1,"a":2}')
@example(b'{"\\u0061":1,"a":2}')
@example(b'{"\\ud800":"\\udfff"}')
@example(b"\xef\xbb\xbf{}")
@example(b'{"a":"\x7f\xc2\x80"}')
@example(b"-0.0e-0")
@example(b"1" * 5000)
@example(b'"' + b"a" * 7 + b"\n" + b'"')
def test_pieces_in_any_order_are_accepted_as_the_standard_library_does(data: bytes) -> None:
    _agrees(data)


@machine_settings(100)
@given(st.binary(max_size=24))
def test_hostile_bytes_are_accepted_as_the_standard_library_does(data: bytes) -> None:
    _agrees(data)
    _agrees(b'"' + data + b'"')
    _agrees(b'{"k":"' + data + b'"}')


@machine_settings(25)
@given(st.lists(_VALUES.map(lambda value: json.dumps(value).encode()) | st.binary(max_size=6)))
def test_many_texts_are_split_as_each_alone(texts: list[bytes]) -> None:
    assert split_texts(texts) == [split_texts([text])[0] for text in texts]


def test_nesting_is_bounded() -> None:
    deepest = b"[" * DEPTH_MAX + b"]" * DEPTH_MAX
    assert split_texts([deepest]) == [deepest]
    assert split_texts([b"[" + deepest + b"]"]) == [None]
    assert split_texts([b"[" * (1 << 20)]) == [None]
    assert split_texts([b'{"a":' * DEPTH_MAX + b"1" + b"}" * DEPTH_MAX]) != [None]


@given(
    values=st.lists(_VALUES, max_size=8),
    separator=st.sampled_from([b",", b",\n", b" , "]),
    lead=st.sampled_from([b"", b","]),
    is_ascii=st.booleans(),
)
def test_joined_texts_are_split_where_they_were_joined(
    values: list[object], separator: bytes, lead: bytes, is_ascii: bool
) -> None:
    texts = [
        json.dumps(one, ensure_ascii=is_ascii).encode(errors="surrogatepass") for one in values
    ]
    assert split_messages(lead + separator.join(texts)) == texts
