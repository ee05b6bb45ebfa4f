"""The parameters of a request for a shape: text in, checked values out.

Invariant  a request that is wrong is refused before anything is made or looked up.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from varve.foundation.errors import InvalidRequest
from varve.http.answer import Refusal, invalid
from varve.shapes.filter.parser import parse_columns
from varve.shapes.offset import BEFORE_ALL, Offset, parse_offset

NOW: Final = "now"
SUBSET_NAMES: Final = ("where", "params", "order_by", "limit", "offset")
_PARAM: Final = re.compile(r"params\[([0-9]{1,5})\]")
_SUBSET: Final = "subset__"
_HANDLE_CHARACTERS_MAX: Final = 200
_LIMIT_MAX: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class DefinitionTexts:
    """What denotes a shape, as it was sent; equal texts are one definition, parsed once."""

    table: str
    where: str | None = None
    params: tuple[tuple[int, str], ...] = ()
    columns: str | None = None
    replica: str = "default"
    log: str = "full"


@dataclass(frozen=True, slots=True)
class SubsetQuery:
    """A question for part of the rows of a shape, as it was sent."""

    where: str | None = None
    params: Mapping[int, str] | None = None
    order_by: str | None = None
    limit: int | None = None
    offset: int | None = None
    queryable: tuple[str, ...] | None = None
    """The columns it may use; None for all."""


@dataclass(frozen=True, slots=True)
class ShapeRequest:
    """A request for data of a shape."""

    texts: DefinitionTexts | None
    """None where only a handle is given."""
    shape_name: str | None
    offset: Offset
    is_now: bool
    handle: str | None
    is_live: bool
    is_events: bool
    cursor: str | None
    subset: SubsetQuery | None

    @property
    def is_initial(self) -> bool:
        """Whether it needs no handle, and may make the shape."""
        return self.is_now or self.offset == BEFORE_ALL


def parse_request(query: Mapping[str, str], body: bytes | None = None) -> ShapeRequest:
    """The request of a GET, or of a POST with its body; raises Refusal."""
    texts, name = parse_definition_texts(query)
    if texts is None and name is None:
        raise invalid("table", "can't be blank")
    subset = _parse_subset(query, body, _parse_queryable(query))
    if texts is None and subset is None and "queryable_columns" in query:
        raise invalid("queryable_columns", "go with table or with a subset")
    offset, is_now = _parse_place(query, is_subset=subset is not None)
    handle = parse_handle(query)
    is_live = _is_on(query, "live")
    is_events = _is_on(query, "live_sse") or _is_on(query, "experimental_live_sse")
    is_initial = is_now or offset == BEFORE_ALL
    if is_live and is_initial:
        raise invalid("live", "can't be true when offset == -1 or offset == now")
    if is_events and not is_live:
        raise invalid("live_sse", "can't be true unless live is also true")
    if handle is None and not is_initial and subset is None:
        raise invalid("handle", "can't be blank when offset != -1 and offset != now")
    return ShapeRequest(
        texts=texts,
        shape_name=name,
        offset=offset,
        is_now=is_now,
        handle=handle,
        is_live=is_live,
        is_events=is_events,
        cursor=query.get("cursor"),
        subset=subset,
    )


def parse_definition_texts(
    query: Mapping[str, str],
) -> tuple[DefinitionTexts | None, str | None]:
    """The texts that denote a shape, and the name of one that the server knows."""
    name = query.get("shape") or None
    table = query.get("table")
    if not table:
        if name is not None:
            _check_name_alone(query)
        return None, name
    texts = DefinitionTexts(
        table=table,
        where=query.get("where") or None,
        params=_parse_params(query),
        columns=query.get("columns", query.get("queryable_columns")),
        replica=query.get("replica", "default"),
        log=query.get("log", "full"),
    )
    return texts, name


def _check_name_alone(query: Mapping[str, str]) -> None:
    """Who names a shape and a filter gets no rows that the filter leaves out."""
    for part in ("where", "columns"):
        if query.get(part):
            raise invalid(part, "goes with table: a shape of a name has its own")
    if _parse_params(query):
        raise invalid("params", "go with table and where: a shape of a name has its own")


def parse_handle(query: Mapping[str, str]) -> str | None:
    """The handle that a request names; raises Refusal for one longer than any."""
    handle = query.get("handle") or None
    if handle is not None and len(handle) > _HANDLE_CHARACTERS_MAX:
        raise invalid("handle", f"is longer than {_HANDLE_CHARACTERS_MAX} characters")
    return handle


def _parse_params(query: Mapping[str, str]) -> tuple[tuple[int, str], ...]:
    found: dict[int, str] = {}
    for name, value in query.items():
        if name.startswith("params"):
            number = _PARAM.fullmatch(name)
            if number is None:
                raise invalid("params", "are written params[1]=, params[2]= and so on")
            found[int(number[1])] = value
    _check_numbers(found, is_subset=False)
    return tuple(sorted(found.items()))


def _check_numbers(params: Mapping[int, str], *, is_subset: bool) -> None:
    if sorted(params) != list(range(1, len(params) + 1)):
        told = "Parameters must be numbered sequentially, starting from 1"
        raise invalid("params", told, is_subset=is_subset)


def _parse_place(query: Mapping[str, str], *, is_subset: bool) -> tuple[Offset, bool]:
    text = query.get("offset")
    if not text:
        if is_subset:
            return BEFORE_ALL, True
        raise invalid("offset", "can't be blank")
    if text == NOW:
        return BEFORE_ALL, True
    try:
        return parse_offset(text), False
    except InvalidRequest as error:
        raise invalid("offset", str(error)) from None


def _is_on(query: Mapping[str, str], name: str) -> bool:
    return query.get(name, "false") != "false"


def _parse_queryable(query: Mapping[str, str]) -> tuple[str, ...] | None:
    """The columns that may be used, where the request names them; refuses others in `columns`."""
    if "queryable_columns" not in query:
        return None
    queryable = _parse_columns(query, "queryable_columns")
    columns = _parse_columns(query, "columns") if "columns" in query else queryable
    denied = [name for name in columns if name not in queryable]
    if denied:
        raise invalid("columns", f"{', '.join(denied):.200} are not among queryable_columns")
    return queryable


def _parse_columns(query: Mapping[str, str], name: str) -> tuple[str, ...]:
    try:
        return parse_columns(query[name])
    except InvalidRequest as error:
        raise invalid(name, str(error)) from None


def _parse_subset(
    query: Mapping[str, str], body: bytes | None, queryable: tuple[str, ...] | None
) -> SubsetQuery | None:
    sent: dict[str, Any] = {
        name: query[_SUBSET + name] for name in SUBSET_NAMES if _SUBSET + name in query
    }
    if body is not None:
        sent.update(_parse_body(body))
    elif not sent:
        return None
    limit = _parse_count(sent, "limit", at_least=1)
    offset = _parse_count(sent, "offset", at_least=0)
    order_by = _parse_text(sent, "order_by")
    if (limit is not None or offset is not None) and order_by is None:
        raise invalid("order_by", "is required when limit or offset are given", is_subset=True)
    return SubsetQuery(
        where=_parse_text(sent, "where"),
        params=_parse_subset_params(sent.get("params")),
        order_by=order_by,
        limit=limit,
        offset=offset,
        queryable=queryable,
    )


def _parse_body(body: bytes) -> dict[str, Any]:
    try:
        sent = json.loads(body)
    except (ValueError, RecursionError):
        raise Refusal(400, {"message": "the body is no JSON"}) from None
    if not isinstance(sent, dict):
        raise Refusal(400, {"message": "the body is no JSON object"})
    inner = sent.get("subset")
    named = inner if isinstance(inner, dict) else sent
    return {name: named[name] for name in SUBSET_NAMES if named.get(name) is not None}


def _parse_text(sent: Mapping[str, Any], name: str) -> str | None:
    value = sent.get(name)
    if value is None or value == "":
        return None
    if not isinstance(value, str):
        raise invalid(name, "is no text", is_subset=True)
    return value


def _parse_count(sent: Mapping[str, Any], name: str, *, at_least: int) -> int | None:
    value = sent.get(name)
    if value is None or value == "":
        return None
    is_digits = isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20
    if is_digits:
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not at_least <= value <= _LIMIT_MAX:
        raise invalid(name, f"must be a whole number, at least {at_least}", is_subset=True)
    return value


def _parse_subset_params(sent: Any) -> Mapping[int, str] | None:
    if sent is None or sent == "":
        return None
    if isinstance(sent, str):
        try:
            sent = json.loads(sent)
        except (ValueError, RecursionError):
            raise invalid("params", "are no JSON", is_subset=True) from None
    if not isinstance(sent, dict):
        raise invalid("params", 'are an object such as {"1": "x"}', is_subset=True)
    found: dict[int, str] = {}
    for number, value in sent.items():
        if not (number.isascii() and number.isdigit() and len(number) <= 5):
            raise invalid("params", 'are numbered: {"1": "x"}', is_subset=True)
        if not isinstance(value, str | int | float):
            raise invalid("params", "are texts, numbers, true or false", is_subset=True)
        found[int(number)] = value if isinstance(value, str) else json.dumps(value)
    _check_numbers(found, is_subset=True)
    return found
