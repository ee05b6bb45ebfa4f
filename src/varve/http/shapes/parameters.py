"""The parameters of requests for shapes: declared once, parsed to checked values.

Invariant  a parameter is read by its declaration, from which the OpenAPI document is derived. An
           invalid request is refused before anything is created or looked up.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from varve.foundation.errors import InvalidRequest
from varve.http.exchange import HttpError, invalid
from varve.shapes.definition import Definition, define
from varve.shapes.filter.parser import parse_columns
from varve.shapes.offset import BEFORE_ALL, ShapeOffset, parse_offset

Schema = dict[str, Any]

NOW: Final = "now"
_HANDLE_CHARACTERS_MAX: Final = 200
_LIMIT_MAX: Final = (1 << 63) - 1
_COUNT: Final[Schema] = {"type": "integer", "minimum": 0}
_POSITIVE: Final[Schema] = {"type": "integer", "minimum": 1}
_OFFSET: Final[Schema] = {
    "type": "string",
    "pattern": r"^(-1|-1_0|now|[0-9]{1,20}_([0-9]{1,20}|inf))$",
    "example": "-1",
}


def _text() -> Schema:
    return {"type": "string"}


@dataclass(frozen=True, slots=True)
class QueryParameter:
    """A parameter of the query string; `schema` is that of its values in JSON Schema."""

    name: str
    description: str
    schema: Schema = field(default_factory=_text)

    def is_in(self, query: Mapping[str, str]) -> bool:
        return self.name in query

    def find(self, query: Mapping[str, str]) -> str | None:
        """Its value; None if it is missing or empty."""
        return query.get(self.name) or None

    def get(self, query: Mapping[str, str], default: str) -> str:
        return query.get(self.name, default)

    def is_true(self, query: Mapping[str, str]) -> bool:
        return query.get(self.name, "false") != "false"

    def to_openapi(self) -> Schema:
        return {
            "name": self.name,
            "in": "query",
            "description": self.description,
            "schema": self.schema,
        }


@dataclass(frozen=True, slots=True)
class NumberedParameter(QueryParameter):
    """A parameter that is sent once for each number: params[1]=x&params[2]=y."""

    def numbers(self, query: Mapping[str, str]) -> dict[int, str]:
        """The values by their numbers, which must be 1, 2 and so on; raises HttpError."""
        values: dict[int, str] = {}
        for name, value in query.items():
            if name.startswith(self.name):
                match = re.fullmatch(rf"{self.name}\[([0-9]{{1,5}})\]", name)
                if match is None:
                    raise invalid(self.name, "are written params[1]=, params[2]= and so on")
                values[int(match[1])] = value
        _check_numbers(values)
        return values

    def to_openapi(self) -> Schema:
        # Not `super()`: a slotted dataclass is created twice, which breaks it.
        return {**QueryParameter.to_openapi(self), "style": "deepObject", "explode": True}


@dataclass(frozen=True, slots=True)
class SubsetParameter(QueryParameter):
    """A field of a subset request: in the query prefixed by `subset__`, in the body by its name."""

    @property
    def field(self) -> str:
        return self.name.removeprefix("subset__")


TABLE: Final = QueryParameter(
    "table", "The topic, or public.topic; needed unless `shape` is given."
)
SHAPE: Final = QueryParameter("shape", "The name of a shape that the server's allow-list declares.")
WHERE: Final = QueryParameter("where", "The filter, a condition in SQL.")
PARAMS: Final = NumberedParameter(
    "params",
    "Values for $1, $2 and so on: params[1]=x.",
    {
        "type": "object",
        "propertyNames": {"pattern": "^[1-9][0-9]{0,4}$"},
        "additionalProperties": {"type": "string"},
    },
)
COLUMNS: Final = QueryParameter("columns", "The columns, separated by commas; all without it.")
QUERYABLE_COLUMNS: Final = QueryParameter(
    "queryable_columns", "The columns that `columns` and subset requests may use."
)
REPLICA: Final = QueryParameter(
    "replica", "What an update holds: changed columns, or all.", {"enum": ["default", "full"]}
)
LOG: Final = QueryParameter(
    "log", "Rows and changes, or changes.", {"enum": ["full", "changes_only"]}
)
OFFSET: Final = QueryParameter(
    "offset", "Where to continue: -1 at the start, now at the end.", _OFFSET
)
HANDLE: Final = QueryParameter("handle", "The handle; needed with offsets other than -1 and now.")
LIVE: Final = QueryParameter("live", "Wait for changes; any value except `false` means yes.")
LIVE_SSE: Final = QueryParameter(
    "live_sse", "With live: as server-sent events; any value except `false` means yes."
)
EXPERIMENTAL_LIVE_SSE: Final = QueryParameter(
    "experimental_live_sse", "The same as live_sse, in the spelling of older clients."
)
CURSOR: Final = QueryParameter(
    "cursor", "The last `electric-cursor`; it only separates cache entries."
)
SUBSET_WHERE: Final = SubsetParameter("subset__where", "A further condition: some rows, once.")
SUBSET_PARAMS: Final = SubsetParameter(
    "subset__params", "Values for its $1, $2 and so on, a JSON object of texts or numbers."
)
SUBSET_ORDER_BY: Final = SubsetParameter("subset__order_by", "The order of the rows.")
SUBSET_LIMIT: Final = SubsetParameter("subset__limit", "How many rows.", _POSITIVE)
SUBSET_OFFSET: Final = SubsetParameter("subset__offset", "How many rows to skip.", _COUNT)

DEFINITION_PARAMETERS: Final = (
    TABLE,
    SHAPE,
    WHERE,
    PARAMS,
    COLUMNS,
    QUERYABLE_COLUMNS,
    REPLICA,
    LOG,
)
READ_PARAMETERS: Final = (
    *DEFINITION_PARAMETERS,
    OFFSET,
    HANDLE,
    LIVE,
    LIVE_SSE,
    EXPERIMENTAL_LIVE_SSE,
    CURSOR,
)
SUBSET_PARAMETERS: Final = (
    SUBSET_WHERE,
    SUBSET_PARAMS,
    SUBSET_ORDER_BY,
    SUBSET_LIMIT,
    SUBSET_OFFSET,
)
SUBSET_FIELDS: Final = tuple(parameter.field for parameter in SUBSET_PARAMETERS)


@dataclass(frozen=True, slots=True)
class DefinitionTexts:
    """The parts of a definition as they were sent; equal ones are parsed once."""

    table: str
    where: str | None = None
    params: tuple[tuple[int, str], ...] = ()
    columns: str | None = None
    replica: str = "default"
    log: str = "full"

    def define(self) -> Definition:
        """The definition that they denote; raises InvalidDefinition."""
        return define(
            self.table,
            where=self.where,
            params=dict(self.params),
            columns=self.columns,
            replica=self.replica,
            log=self.log,
        )


@dataclass(frozen=True, slots=True)
class SubsetQuery:
    """A request for some rows of a shape, as it was sent."""

    where: str | None = None
    params: Mapping[int, str] | None = None
    order_by: str | None = None
    limit: int | None = None
    offset: int | None = None
    queryable: tuple[str, ...] | None = None
    """The columns that it may use; None for all."""


@dataclass(frozen=True, slots=True)
class ShapeRequest:
    """A request for data of a shape."""

    texts: DefinitionTexts | None
    """None if only a name is given."""
    shape_name: str | None
    offset: ShapeOffset
    is_now: bool
    handle: str | None
    is_live: bool
    is_events: bool
    cursor: str | None
    subset: SubsetQuery | None

    @property
    def is_initial(self) -> bool:
        """Whether it needs no handle, and may create the shape."""
        return self.is_now or self.offset == BEFORE_ALL


def parse_request(query: Mapping[str, str], body: bytes | None = None) -> ShapeRequest:
    """The request of a GET, or of a POST with its body; raises HttpError."""
    texts, name = parse_definition_texts(query)
    if texts is None and name is None:
        raise invalid(TABLE.name, "can't be blank")
    subset = _parse_subset(query, body, _parse_queryable(query))
    if texts is None and subset is None and QUERYABLE_COLUMNS.is_in(query):
        raise invalid(QUERYABLE_COLUMNS.name, "go with table or with a subset")
    offset, is_now = _parse_offset(query, is_subset=subset is not None)
    handle = parse_handle(query)
    is_live = LIVE.is_true(query)
    is_events = LIVE_SSE.is_true(query) or EXPERIMENTAL_LIVE_SSE.is_true(query)
    is_initial = is_now or offset == BEFORE_ALL
    if is_live and is_initial:
        raise invalid(LIVE.name, "can't be true when offset == -1 or offset == now")
    if is_events and not is_live:
        raise invalid(LIVE_SSE.name, "can't be true unless live is also true")
    if handle is None and not is_initial and subset is None:
        raise invalid(HANDLE.name, "can't be blank when offset != -1 and offset != now")
    return ShapeRequest(
        texts=texts,
        shape_name=name,
        offset=offset,
        is_now=is_now,
        handle=handle,
        is_live=is_live,
        is_events=is_events,
        cursor=CURSOR.find(query),
        subset=subset,
    )


def parse_definition_texts(
    query: Mapping[str, str],
) -> tuple[DefinitionTexts | None, str | None]:
    """The parts of a definition, and the name of a shape that the server declares."""
    name = SHAPE.find(query)
    table = TABLE.find(query)
    if table is None:
        if name is not None:
            _check_name_only(query)
        return None, name
    columns = COLUMNS if COLUMNS.is_in(query) else QUERYABLE_COLUMNS
    texts = DefinitionTexts(
        table=table,
        where=WHERE.find(query),
        params=tuple(sorted(PARAMS.numbers(query).items())),
        columns=columns.get(query, "") if columns.is_in(query) else None,
        replica=REPLICA.get(query, "default"),
        log=LOG.get(query, "full"),
    )
    return texts, name


def _check_name_only(query: Mapping[str, str]) -> None:
    """A request for a named shape has no filter: it would get rows that the filter excludes."""
    for parameter in (WHERE, COLUMNS):
        if parameter.find(query) is not None:
            raise invalid(parameter.name, "goes with table: a named shape has its own")
    if PARAMS.numbers(query):
        raise invalid(PARAMS.name, "go with table and where: a named shape has its own")


def parse_handle(query: Mapping[str, str]) -> str | None:
    """The handle of a request; raises HttpError if it is longer than any."""
    handle = HANDLE.find(query)
    if handle is not None and len(handle) > _HANDLE_CHARACTERS_MAX:
        raise invalid(HANDLE.name, f"is longer than {_HANDLE_CHARACTERS_MAX} characters")
    return handle


def _check_numbers(params: Mapping[int, str], *, within: str | None = None) -> None:
    if sorted(params) != list(range(1, len(params) + 1)):
        text = "Parameters must be numbered sequentially, starting from 1"
        raise invalid(PARAMS.name, text, within=within)


def _parse_offset(query: Mapping[str, str], *, is_subset: bool) -> tuple[ShapeOffset, bool]:
    """The offset, and whether it is `now`."""
    text = OFFSET.find(query)
    if text is None:
        if is_subset:
            return BEFORE_ALL, True
        raise invalid(OFFSET.name, "can't be blank")
    if text == NOW:
        return BEFORE_ALL, True
    try:
        return parse_offset(text), False
    except InvalidRequest as error:
        raise invalid(OFFSET.name, str(error)) from None


def _parse_queryable(query: Mapping[str, str]) -> tuple[str, ...] | None:
    """The columns that may be used, if the request names them; raises HttpError for others."""
    if not QUERYABLE_COLUMNS.is_in(query):
        return None
    queryable = _parse_columns(query, QUERYABLE_COLUMNS)
    columns = _parse_columns(query, COLUMNS) if COLUMNS.is_in(query) else queryable
    denied = [name for name in columns if name not in queryable]
    if denied:
        raise invalid(COLUMNS.name, f"{', '.join(denied):.200} are not among queryable_columns")
    return queryable


def _parse_columns(query: Mapping[str, str], parameter: QueryParameter) -> tuple[str, ...]:
    try:
        return parse_columns(parameter.get(query, ""))
    except InvalidRequest as error:
        raise invalid(parameter.name, str(error)) from None


def _parse_subset(
    query: Mapping[str, str], body: bytes | None, queryable: tuple[str, ...] | None
) -> SubsetQuery | None:
    sent: dict[str, Any] = {
        parameter.field: parameter.get(query, "")
        for parameter in SUBSET_PARAMETERS
        if parameter.is_in(query)
    }
    if body is not None:
        sent.update(_parse_body(body))
    elif not sent:
        return None
    limit = _parse_count(sent, SUBSET_LIMIT)
    offset = _parse_count(sent, SUBSET_OFFSET)
    order_by = _parse_text(sent, SUBSET_ORDER_BY)
    if (limit is not None or offset is not None) and order_by is None:
        raise invalid(
            SUBSET_ORDER_BY.field, "is required when limit or offset are given", within="subset"
        )
    return SubsetQuery(
        where=_parse_text(sent, SUBSET_WHERE),
        params=_parse_subset_params(sent.get(SUBSET_PARAMS.field)),
        order_by=order_by,
        limit=limit,
        offset=offset,
        queryable=queryable,
    )


def _parse_body(body: bytes) -> dict[str, Any]:
    """The fields of a subset; an empty body has none."""
    try:
        sent = json.loads(body or b"{}")
    except (ValueError, RecursionError):
        raise HttpError(400, {"message": "the body is not JSON"}) from None
    if not isinstance(sent, dict):
        raise HttpError(400, {"message": "the body is not a JSON object"})
    inner = sent.get("subset")
    named = inner if isinstance(inner, dict) else sent
    return {name: named[name] for name in SUBSET_FIELDS if named.get(name) is not None}


def _parse_text(sent: Mapping[str, Any], parameter: SubsetParameter) -> str | None:
    value = sent.get(parameter.field)
    if value is None or value == "":
        return None
    if not isinstance(value, str):
        raise invalid(parameter.field, "is not a text", within="subset")
    return value


def _parse_count(sent: Mapping[str, Any], parameter: SubsetParameter) -> int | None:
    value, at_least = sent.get(parameter.field), parameter.schema["minimum"]
    if value is None or value == "":
        return None
    is_digits = isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20
    if is_digits:
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not at_least <= value <= _LIMIT_MAX:
        text = f"must be a whole number, at least {at_least}"
        raise invalid(parameter.field, text, within="subset")
    return value


def _parse_subset_params(sent: Any) -> Mapping[int, str] | None:
    if sent is None or sent == "":
        return None
    if isinstance(sent, str):
        try:
            sent = json.loads(sent)
        except (ValueError, RecursionError):
            raise invalid(PARAMS.name, "are not JSON", within="subset") from None
    if not isinstance(sent, dict):
        raise invalid(PARAMS.name, 'are an object such as {"1": "x"}', within="subset")
    params: dict[int, str] = {}
    for number, value in sent.items():
        if not (number.isascii() and number.isdigit() and len(number) <= 5):
            raise invalid(PARAMS.name, 'are numbered: {"1": "x"}', within="subset")
        if not isinstance(value, str | int | float):
            raise invalid(PARAMS.name, "are texts, numbers, true or false", within="subset")
        params[int(number)] = value if isinstance(value, str) else json.dumps(value)
    _check_numbers(params, within="subset")
    return params
