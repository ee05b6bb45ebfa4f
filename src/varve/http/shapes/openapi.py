"""The OpenAPI document of the shape API: every request and every response.

Invariant  parameters are those that the server reads, from their declarations. The page
           docs/reference/openapi.json and the response of the server are this document.
"""

from collections.abc import Sequence
from typing import Any, Final

from varve.http.shapes.parameters import (
    DEFINITION_PARAMETERS,
    HANDLE,
    READ_PARAMETERS,
    SUBSET_PARAMETERS,
    SUBSET_PARAMS,
    QueryParameter,
)

Document = dict[str, Any]

_STRING: Final[Document] = {"type": "string"}
_OFFSET: Final[Document] = {"type": "string", "pattern": "^(-1|[0-9]+_([0-9]+|inf))$"}
_HANDLE_IN_PATH: Final = {"name": "handle", "in": "path", "required": True, "schema": _STRING}
_ERRORS: Final = {
    "400": ("A parameter cannot be used.", "Invalid"),
    "401": ("The token is missing or wrong.", "Message"),
    "403": ("The server does not serve this shape, or pages of this origin.", "Message"),
    "404": ("There is no such shape.", "Message"),
    "405": ("Shapes may not be deleted here.", "Message"),
    "408": ("The body did not arrive.", "Message"),
    "413": ("The body is too large.", "Failure"),
    "500": ("An internal error.", "Failure"),
    "503": ("Not now: try again after `retry-after` seconds.", "Message"),
    "505": ("Events need HTTP/1.1.", "Message"),
}
_COMMON: Final = ("401", "403", "500", "503")
"""Errors that every operation may have, except that of the health."""


def make_document() -> Document:
    """The whole document."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "varve shapes",
            "version": "1",
            "description": "Filtered views of keyed topics over HTTP: a snapshot, then changes. "
            "docs/reference/shape-protocol.md describes how to follow one.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": _paths(),
        "components": {
            "schemas": _schemas(),
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "secret": {"type": "apiKey", "in": "query", "name": "secret"},
            },
        },
        "security": [{}, {"bearer": []}, {"secret": []}],
    }


def _paths() -> Document:
    return {
        "/v1/shape": {"get": _read_shape(), "post": _query_subset(), "delete": _delete_shape()},
        "/v1/shapes": {"get": _list_shapes()},
        "/v1/shapes/{handle}": {
            "get": _operation(
                "showShape",
                "One shape.",
                {"200": _content("The shape.", "Shape")},
                errors=("404",),
                parameters=[_HANDLE_IN_PATH],
            )
        },
        "/v1/shapes/{handle}/compact": {
            "post": _operation(
                "compactShape",
                "Compacts the log of a shape now.",
                {"200": _content("The report of the compaction.", {"type": "object"})},
                errors=("404",),
                parameters=[_HANDLE_IN_PATH],
            )
        },
        "/v1/health": {
            "get": {
                "operationId": "health",
                "summary": "Whether shapes are served.",
                "security": [],
                "responses": {
                    "200": _content("They are.", "Health"),
                    "202": _content("Not yet.", "Health"),
                    "403": _content(*_ERRORS["403"]),
                },
            }
        },
        "/metrics": {
            "get": _operation(
                "metrics",
                "Metrics in the format of Prometheus.",
                {
                    "200": {
                        "description": "Metrics.",
                        "content": {"text/plain": {"schema": _STRING}},
                    }
                },
            )
        },
    }


def _read_shape() -> Document:
    either = {"oneOf": [_reference("Messages"), _reference("SubsetRows")]}
    optional = ("electric-schema", "electric-cursor", "electric-up-to-date", "electric-has-data")
    data = {
        "description": "Messages in the order of their offsets; the rows of a subset request.",
        "headers": {
            "electric-handle": {"schema": _STRING, "required": True},
            "electric-offset": {"schema": _OFFSET, "required": True},
            **{name: {"schema": _STRING} for name in optional},
        },
        "content": {
            "application/json": {"schema": either},
            "text/event-stream": {"schema": _STRING},
        },
    }
    unchanged = {"description": "A cache has this response already."}
    return _operation(
        "readShape",
        "What follows an offset: rows first, then changes; live, when they happen.",
        {"200": data, "304": unchanged, "409": _refetch()},
        errors=("400", "505"),
        parameters=_parameters(*READ_PARAMETERS, *SUBSET_PARAMETERS),
    )


def _query_subset() -> Document:
    names = ("electric-handle", "electric-offset", "electric-schema")
    rows = {**_content("The rows.", "SubsetRows"), "headers": _required_headers(*names)}
    return _operation(
        "querySubset",
        "Some rows of a shape, once; the body says which.",
        {"200": rows, "409": _refetch()},
        errors=("400", "408", "413"),
        parameters=_parameters(*READ_PARAMETERS),
        requestBody={
            "required": False,
            "content": {"application/json": {"schema": _reference("Subset")}},
        },
    )


def _delete_shape() -> Document:
    return _operation(
        "deleteShape",
        "Drops a shape, by definition, by handle, or by both; its clients refetch.",
        {
            "202": {"description": "The shape is dropped."},
            "400": _content("Nothing is named, or handle and definition differ.", "Invalid"),
        },
        errors=("404", "405"),
        parameters=_parameters(HANDLE, *DEFINITION_PARAMETERS),
    )


def _list_shapes() -> Document:
    return _operation(
        "listShapes",
        "All shapes by handle, a thousand at a time.",
        {
            "200": _content("Shapes.", "Shapes"),
            "400": _content("The query is not UTF-8.", "Invalid"),
        },
        parameters=_parameters(
            QueryParameter("after", "Those after this handle."),
            QueryParameter("table", "Those of one topic."),
        ),
    )


def _operation(
    name: str, summary: str, responses: Document, *, errors: Sequence[str] = (), **fields: Any
) -> Document:
    """An operation with its own responses, and errors by their status."""
    described = {status: _content(*_ERRORS[status]) for status in (*errors, *_COMMON)}
    described["503"]["headers"] = _required_headers("retry-after")
    every = {**described, **responses}
    return {
        "operationId": name,
        "summary": summary,
        **fields,
        "responses": {status: every[status] for status in sorted(every)},
    }


def _parameters(*parameters: QueryParameter) -> list[Document]:
    return [parameter.to_openapi() for parameter in parameters]


def _reference(name: str) -> Document:
    return {"$ref": f"#/components/schemas/{name}"}


def _content(
    description: str, schema: str | Document, media_type: str = "application/json"
) -> Document:
    """A response with a body of a schema, or of the name of one."""
    named = _reference(schema) if isinstance(schema, str) else schema
    return {"description": description, "content": {media_type: {"schema": named}}}


def _required_headers(*names: str) -> Document:
    return {name: {"schema": _STRING, "required": True} for name in names}


def _refetch() -> Document:
    return {
        **_content("The shape was replaced: start again with this handle.", "Messages"),
        "headers": {"electric-handle": {"schema": _STRING}},
    }


def _object(required: list[str], **properties: Document) -> Document:
    return {"type": "object", "required": required, "properties": properties}


def _schemas() -> Document:
    texts = {"type": "array", "items": _STRING}
    nullable = {"type": ["string", "null"]}
    rows = {"type": "array", "items": _reference("Change")}
    shape = _object(
        ["handle", "table"],
        handle=_STRING,
        table=_STRING,
        where=nullable,
        columns={"type": ["array", "null"], "items": _STRING},
        replica=_STRING,
        log=_STRING,
        snapshot={"enum": ["waiting", "started", "complete", "failed"]},
        latest=_OFFSET,
        created_ms={"type": "integer"},
    )
    metadata = _object(
        ["xmin", "xmax", "xip_list", "snapshot_mark", "database_lsn"],
        xmin=_STRING,
        xmax=_STRING,
        xip_list=texts,
        snapshot_mark={"type": "integer"},
        database_lsn=_STRING,
    )
    values = {"type": ["string", "number", "boolean"]}
    subset = _object([], **{field.field: field.schema for field in SUBSET_PARAMETERS})
    subset["properties"][SUBSET_PARAMS.field] = {"type": "object", "additionalProperties": values}
    return {
        "Change": _object(
            ["headers"],
            key=_STRING,
            value={"type": ["object", "null"]},
            old_value={"type": "object"},
            headers={"type": "object"},
        ),
        "Messages": rows,
        "Subset": subset,
        "SubsetRows": _object(["metadata", "data"], metadata=metadata, data=rows),
        "Shape": shape,
        "Shapes": _object(
            ["shapes"],
            shapes={"type": "array", "items": _reference("Shape")},
            after=_STRING,
        ),
        "Health": _object(["status"], status={"enum": ["active", "waiting", "starting"]}),
        "Message": _object(["message"], message=_STRING, code=_STRING),
        "Failure": _object(["error"], error=_STRING),
        "Invalid": _object(["message"], message=_STRING, errors={"type": "object"}),
    }
