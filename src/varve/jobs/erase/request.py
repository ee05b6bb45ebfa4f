"""The request of an erasure: keys or field values, topics, and deadline.

Layout     a key file has one key per line: text, or bytes as `base64:...` or `hex:...`, without the
           line end. A key that begins with one of these prefixes or contains a line end is written
           in base64. A byte order mark before the first line is ignored.
Invariant  keys and values stay in the memory of the job: only salted digests and counts are stored.
           Values of a field are compared by type: text with text, numbers by value regardless of
           notation, and numbers outside the range of Decimal by their text. True, false and null
           match nothing. If a JSON object repeats a name, each of its values is compared.
"""

import base64
import binascii
import hashlib
import hmac
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from typing import Any, Final, Self

from varve.foundation.errors import InvalidRequest
from varve.foundation.topic_records import check_list
from varve.jobs.erase.input_file import open_input
from varve.jobs.source.record_blocks import RecordBlock
from varve.kernels.batch_layout import RecordColumn

_PAYLOAD: Final = "payload"
"""Debezium's envelope is below this name if the converter writes schemas."""
_ROWS: Final = ("before", "after", "source")
"""Parts of Debezium's envelope with fields of the row or its origin."""
_DEPTH_MAX: Final = 64
BUFFER_BYTES: Final = 64 << 20
DIGESTS_MAX: Final = 1000
"""A receipt of more keys has only their number and one digest of all."""

_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_BASE64: Final = "base64:"
_HEX: Final = "hex:"
_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")


class ValueFormat(StrEnum):
    """The format of record values."""

    JSON = "json"
    DEBEZIUM = "debezium"


@dataclass(frozen=True, slots=True)
class FieldMatch:
    """Matches records in which a field has one of several values."""

    path: tuple[str, ...]
    texts: frozenset[str]
    numbers: frozenset[Decimal]
    format: ValueFormat

    @classmethod
    def of(cls, path: str, values: Sequence[str], format: ValueFormat) -> Self:
        """Raises InvalidRequest for an invalid path, or if there are no values."""
        values = check_list(values, str, what="values")
        names = _names(path)
        if not all(names) or not 0 < len(names) <= _DEPTH_MAX:
            raise InvalidRequest(
                f"field {path!r:.200} must be 1 to {_DEPTH_MAX} names joined by dots, such as "
                """customer.email, or a list in JSON, such as ["customer", "e.mail"]"""
            )
        if not values:
            raise InvalidRequest(
                f"field {path!r:.200} has no value to look for; add --value or --values-file"
            )
        numbers = frozenset(number for text in values if (number := _number(text)) is not None)
        return cls(names, frozenset(values), numbers, format)

    @property
    def written(self) -> str:
        """The path in the notation of the request."""
        plain = ".".join(self.path)
        return plain if _names(plain) == self.path else json.dumps(self.path, ensure_ascii=False)

    def find(self, block: RecordBlock) -> tuple[list[bool], int]:
        """Marks the matching records, and counts the values that are not JSON."""
        payload = block.payload.data
        columns = slice(RecordColumn.KEY_START, RecordColumn.VALUE_SIZE + 1)
        matches: list[bool] = []
        unread = 0
        for key_at, key_size, value_at, value_size in block.records[:, columns].tolist():
            is_match = False
            if value_size >= 0:
                try:
                    value = _parse(payload[value_at : value_at + value_size])
                    is_match = any(self._has_match(root) for root in self._roots(value))
                except ValueError:
                    unread += 1
            if not is_match and key_size >= 0:
                is_match = self._is_in_key(payload[key_at : key_at + key_size])
            matches.append(is_match)
        return matches, unread

    def _is_in_key(self, data: memoryview) -> bool:
        """Whether a key matches; a key that is not JSON does not."""
        try:
            key = _parse(data)
        except ValueError:
            return False
        return any(self._has_match(root) for root in (key, *_values(key, _PAYLOAD)))

    def _roots(self, value: Any) -> Iterator[Any]:
        if self.format is ValueFormat.JSON:
            yield value
            return
        for envelope in (value, *_values(value, _PAYLOAD)):
            for name in _ROWS:
                yield from _values(envelope, name)

    def _has_match(self, root: Any) -> bool:
        return any(self._is_selected(value) for value in _walk(root, self.path))

    def _is_selected(self, value: Any) -> bool:
        if isinstance(value, str):
            return value in self.texts
        if isinstance(value, bool) or not isinstance(value, int | Decimal):
            return False
        return value in self.numbers


def _names(path: str) -> tuple[str, ...]:
    """Splits a path into names: a JSON list, or names separated by dots."""
    if path.startswith("["):
        try:
            names = json.loads(path)
        except (ValueError, RecursionError):
            names = None
        if isinstance(names, list) and all(isinstance(name, str) for name in names):
            return tuple(names)
    return tuple(path.split("."))


class _RepeatedValues(list[Any]):
    """All values of a name that occurs several times in one JSON object."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        values: dict[str, list[Any]] = {}
        for name, value in pairs:
            values.setdefault(name, []).append(value)
        members |= {
            name: _RepeatedValues(repeated)
            for name, repeated in values.items()
            if len(repeated) > 1
        }
    return members


def _values(value: Any, name: str) -> Sequence[Any]:
    """Returns the values of a name in an object: none, one, or several if it is repeated."""
    if not isinstance(value, dict) or name not in value:
        return ()
    inner = value[name]
    return inner if isinstance(inner, _RepeatedValues) else (inner,)


def _walk(root: Any, path: tuple[str, ...]) -> Iterator[Any]:
    """Yields every value at a path; the path applies to each item of a list."""
    if isinstance(root, list):
        for item in root:
            yield from _walk(item, path)
    elif not path:
        yield root
    elif isinstance(root, dict) and path[0] in root:
        yield from _walk(root[path[0]], path[1:])


def _parse(data: memoryview) -> Any:
    """Parses JSON; raises ValueError."""
    try:
        return json.loads(bytes(data), parse_float=_decimal, object_pairs_hook=_object)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _decimal(text: str) -> Decimal | str:
    """Converts a JSON number; returns its text if its exponent exceeds the range of Decimal."""
    try:
        return Decimal(text)
    except InvalidOperation:
        return text


def _number(text: str) -> Decimal | None:
    try:
        number = Decimal(text)
    except InvalidOperation:
        return None
    return number if number.is_finite() else None


class RescanMode(StrEnum):
    """`full` re-reads all data; `keys` uses verified key indexes of live segments instead."""

    FULL = "full"
    KEYS = "keys"


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasureRequest:
    """Selects records of topics by exact keys, or by the value of a field.

    `id` identifies the erasure; an interrupted erasure is continued under its id. With `grace_ms`
    replaced objects are retained for readers, and a later run under the same id finishes the
    erasure and issues the receipt. `takes_over` takes the lease of a partition from a dead job.
    """

    topics: tuple[str, ...]
    id: str
    keys: frozenset[bytes] = frozenset()
    field: FieldMatch | None = None
    asked_ms: int | None = None
    deadline_ms: int | None = None
    grace_ms: int = 0
    rescan: RescanMode = RescanMode.FULL
    lists_digests: bool = True
    buffer_bytes: int = BUFFER_BYTES
    takes_over: bool = False

    def __post_init__(self) -> None:
        if not self.topics:
            raise InvalidRequest("name the topics from which records are to be erased")
        if not self.keys and self.field is None:
            raise InvalidRequest("give the keys to erase, or a field and its value")
        if _ID.fullmatch(self.id) is None:
            raise InvalidRequest(
                f"erasure id {self.id!r:.80} must be 1 to 64 letters, digits, '_' and '-'"
            )
        if self.grace_ms < 0:
            raise InvalidRequest(f"grace of {self.grace_ms} ms must be at least 0")

    def describe(self, salt: bytes) -> dict[str, object]:
        """Encodes the request for a receipt, with digests instead of keys and values."""
        document: dict[str, object] = {"topics": list(self.topics)}
        if self.keys:
            document["keys"] = self._digests(sorted(self.keys), salt)
        if self.field is not None:
            values = sorted(text.encode() for text in self.field.texts)
            document["field"] = {
                "path": self.field.written,
                "format": str(self.field.format),
                "values": self._digests(values, salt),
            }
        return document

    def _digests(self, values: list[bytes], salt: bytes) -> dict[str, object]:
        document: dict[str, object] = {"count": len(values)}
        if self.lists_digests:
            document |= {"salt": salt.hex(), "digest_of_all": _digest_all(values, salt)}
            if len(values) <= DIGESTS_MAX:
                document["digests"] = [digest_key(value, salt) for value in values]
        return document

    def find_difference(self, recorded: Mapping[str, Any]) -> str | None:
        """Names the part that differs from a recorded request; None if they are the same."""
        if set(recorded["topics"]) != set(self.topics):
            return "topics"
        if not _are_same(sorted(self.keys), recorded.get("keys")):
            return "keys"
        own, field = self.field, recorded.get("field")
        if own is None or field is None:
            return None if own is field else "fields"
        if (field["path"], field["format"]) != (own.written, own.format):
            return "fields"
        texts = sorted(text.encode() for text in own.texts)
        return None if _are_same(texts, field["values"]) else "values"


def has_digests(recorded: Mapping[str, Any]) -> bool:
    """Whether a recorded request has digests of its keys and values, besides their number."""
    field = recorded.get("field")
    parts = (recorded.get("keys"), None if field is None else field["values"])
    return all("salt" in part for part in parts if part is not None)


def _are_same(values: list[bytes], recorded: Mapping[str, Any] | None) -> bool:
    if recorded is None or recorded["count"] != len(values):
        return recorded is None and not values
    if "salt" not in recorded:
        return True
    return bool(recorded["digest_of_all"] == _digest_all(values, bytes.fromhex(recorded["salt"])))


def _digest_all(values: list[bytes], salt: bytes) -> str:
    whole = hmac.new(salt, digestmod=hashlib.sha256)
    for value in values:
        whole.update(bytes.fromhex(digest_key(value, salt)))
    return whole.hexdigest()


def digest_key(key: bytes, salt: bytes) -> str:
    """The digest of a key in a receipt: HMAC-SHA-256 under the receipt's salt."""
    return hmac.new(salt, key, hashlib.sha256).hexdigest()


def parse_key(text: str, where: str = "the key") -> bytes:
    """Parses a key of the command line or a key file; raises InvalidRequest."""
    if not text:
        raise InvalidRequest(
            f"{where} is empty, as that of an unset variable: if the empty key is meant write hex:"
        )
    try:
        if text.startswith(_BASE64):
            return base64.b64decode(text.removeprefix(_BASE64), validate=True)
        if text.startswith(_HEX):
            return bytes.fromhex(text.removeprefix(_HEX))
    except (binascii.Error, ValueError):
        raise InvalidRequest(
            f"{where} begins with base64: or hex:, but the rest is not base64 or hexadecimal"
        ) from None
    return text.encode()


def collect_keys(keys: Iterable[str], path: str | None) -> frozenset[bytes]:
    """Parses keys of the command line, and those of a file."""
    parsed = frozenset(parse_key(key, "--key") for key in keys)
    if path is None:
        return parsed
    with open_input(path) as file:
        return parsed | read_keys(file, path)


def collect_field(
    path: str | None, values: Sequence[str], values_path: str | None, format: ValueFormat
) -> FieldMatch | None:
    """The field with the values of the command line and of a file; None without a field."""
    if path is None:
        if values or values_path is not None:
            raise InvalidRequest("--value needs --field, the path of the value")
        return None
    if not all(values):
        raise InvalidRequest("--value is empty: is a variable unset? An empty value cannot match")
    texts = list(values)
    if values_path is not None:
        with open_input(values_path) as file:
            texts += read_values(file, values_path)
    return FieldMatch.of(path, texts, format)


def read_keys(lines: Iterable[bytes], where: str) -> frozenset[bytes]:
    """Reads a key file, one key per line; empty lines are skipped. Raises InvalidRequest."""
    remedy = "; write the key as base64:... or hex:..."
    keys = frozenset(
        parse_key(text, f"{where}: line {number}")
        for number, text in _decode_lines(lines, where, remedy)
    )
    if not keys:
        raise InvalidRequest(f"{where} holds no key")
    return keys


def read_values(lines: Iterable[bytes], where: str) -> list[str]:
    """Reads a file of values, one per line; empty lines are skipped. Raises InvalidRequest."""
    values = [text for _, text in _decode_lines(lines, where)]
    if not values:
        raise InvalidRequest(f"{where} holds no value")
    return values


def _decode_lines(
    lines: Iterable[bytes], where: str, remedy: str = ""
) -> Iterator[tuple[int, str]]:
    """Yields the number, from 1, and the text of each line that is not empty."""
    for number, line in enumerate(lines, 1):
        plain = line.removeprefix(_BYTE_ORDER_MARK) if number == 1 else line
        try:
            text = plain.rstrip(b"\r\n").decode()
        except UnicodeDecodeError:
            raise InvalidRequest(f"{where}: line {number} is not UTF-8{remedy}") from None
        if text:
            yield number, text
