"""Texts that commas join come apart again, whatever they hold."""

import json

from hypothesis import given
from hypothesis import strategies as st

from varve.shapes.kernels.json_text import split_messages

_SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
_TEXTS = st.recursive(
    _SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(
    values=st.lists(_TEXTS, max_size=8),
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
