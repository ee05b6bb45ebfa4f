"""The text that names a row to clients.

Layout     `"public"."<topic>"`, then for each key column by name `/"<value>"` with `/` doubled.
           A JSON string stands as what it says, null as `_` without quotes, all else as its JSON.
"""

from varve.shapes.feed.row import NULL, Row, decode_text

SCHEMA = "public"


def row_key_prefix(topic: str) -> str:
    """What the keys of a topic's rows start with."""
    return f'"{SCHEMA}"."{topic}"'


def row_key(prefix: str, key_columns: Row) -> str:
    """The key of a row, given `row_key_prefix` of its topic."""
    if len(key_columns) == 1:
        (text,) = key_columns.values()
        return prefix + _part(text)
    return prefix + "".join([_part(key_columns[name]) for name in sorted(key_columns)])


def _part(text: bytes) -> str:
    if text == NULL:
        return "/_"
    return f'/"{_display(text)}"'.replace("/", "//")[1:]


def _display(text: bytes) -> str:
    """What a JSON string says; a text with half a surrogate pair stays as it is spelled."""
    said = decode_text(text)
    if said is None:
        return text.decode()
    try:
        said.encode()
    except UnicodeEncodeError:
        return text[1:-1].decode()
    return said
