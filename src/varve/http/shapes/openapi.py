"""The shape API as an OpenAPI document: what may be sent, and every response there is.

Invariant  parameters are those that the server reads, from their declarations. The page
           docs/shapes-openapi.json and what the server shows are this document.
"""

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


def make_document() -> Document:
    """The whole document."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "varve shapes",
            "version": "1",
            "description": "Filtered views of keyed topics over HTTP: a snapshot, then changes. "
            "docs/shapes-http.md describes how to follow one.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": {
            "/v1/shape": {
                "get": _get_shape(),
                "post": _post_shape(),
                "delete": _delete_shape(),
            },
            "/v1/shapes": {"get": _list_shapes()},
            "/v1/shapes/{handle}": {"get": _show_shape()},
            "/v1/shapes/{handle}/compact": {"post": _compact_shape()},
            "/v1/health": {"get": _health()},
            "/metrics": {"get": _metrics()},
        },
        "components": {
            "schemas": _schemas(),
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "secret": {"type": "apiKey", "in": "query", "name": "secret"},
            },
        },
        "security": [{}, {"bearer": []}, {"secret": []}],
    }


def _get_shape() -> Document:
    return {
        "operationId": "readShape",
        "summary": "What follows an offset: rows first, then changes; live, when they happen.",
        "parameters": _parameters(*READ_PARAMETERS, *SUBSET_PARAMETERS),
        "responses": {
            "200": _data_response(),
            "304": {"description": "A cache has this response already."},
            "400": _error("A parameter cannot be used.", "Invalid"),
            **_common_responses(),
            "403": _error("The shape is not among those that may be asked for.", "Message"),
            "409": _refetch_response(),
            "505": _error("Events need HTTP/1.1.", "Message"),
        },
    }


def _post_shape() -> Document:
    return {
        "operationId": "querySubset",
        "summary": "Some rows of a shape, once; the body says which.",
        "parameters": _parameters(*READ_PARAMETERS),
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Subset"}}},
        },
        "responses": {
            "200": {
                "description": "The rows.",
                "headers": _headers("electric-handle", "electric-offset", "electric-schema"),
                "content": _json("SubsetRows"),
            },
            "400": _error("A parameter cannot be used.", "Invalid"),
            **_common_responses(),
            "403": _error("The shape is not among those that may be asked for.", "Message"),
            "408": _error("The body did not arrive.", "Message"),
            "409": _refetch_response(),
            "413": _error("The body is too large.", "Failure"),
        },
    }


def _delete_shape() -> Document:
    return {
        "operationId": "deleteShape",
        "summary": "Drops a shape, by definition, by handle, or by both; its clients refetch.",
        "parameters": _parameters(HANDLE, *DEFINITION_PARAMETERS),
        "responses": {
            "202": {"description": "The shape is gone."},
            "400": _error("Nothing is named, or handle and definition differ.", "Invalid"),
            **_common_responses(),
            "403": _error("The shape is not among those that may be asked for.", "Message"),
            "404": _error("There is no such shape.", "Message"),
            "405": _error("Shapes may not be deleted here.", "Message"),
        },
    }


def _list_shapes() -> Document:
    return {
        "operationId": "listShapes",
        "summary": "All shapes by handle, a thousand at a time.",
        "parameters": _parameters(
            QueryParameter("after", "Those after this handle."),
            QueryParameter("table", "Those of one topic."),
        ),
        "responses": {
            "200": {"description": "Shapes.", "content": _json("Shapes")},
            "400": _error("The query is not UTF-8.", "Invalid"),
            **_common_responses(),
        },
    }


def _show_shape() -> Document:
    return {
        "operationId": "showShape",
        "summary": "One shape.",
        "parameters": [_handle_in_path()],
        "responses": {
            "200": {"description": "The shape.", "content": _json("Shape")},
            **_common_responses(),
            "404": _error("There is no such shape.", "Message"),
        },
    }


def _compact_shape() -> Document:
    return {
        "operationId": "compactShape",
        "summary": "Compacts the log of a shape now.",
        "parameters": [_handle_in_path()],
        "responses": {
            "200": {
                "description": "The report of the compaction.",
                "content": {"application/json": {"schema": {"type": "object"}}},
            },
            **_common_responses(),
            "404": _error("There is no such shape.", "Message"),
        },
    }


def _health() -> Document:
    content = _json("Health")
    return {
        "operationId": "health",
        "summary": "Whether shapes are served.",
        "security": [],
        "responses": {
            "200": {"description": "They are.", "content": content},
            "202": {"description": "Not yet.", "content": content},
        },
    }


def _metrics() -> Document:
    return {
        "operationId": "metrics",
        "summary": "Metrics in the format of Prometheus.",
        "responses": {
            "200": {"description": "Metrics.", "content": {"text/plain": {"schema": _STRING}}},
            **_common_responses(),
        },
    }


def _parameters(*parameters: QueryParameter) -> list[Document]:
    return [parameter.to_openapi() for parameter in parameters]


def _handle_in_path() -> Document:
    return {"name": "handle", "in": "path", "required": True, "schema": _STRING}


def _json(name: str) -> Document:
    return {"application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}}


def _error(description: str, name: str) -> Document:
    return {"description": description, "content": _json(name)}


def _headers(*names: str) -> Document:
    return {name: {"schema": _STRING, "required": True} for name in names}


def _common_responses() -> Document:
    return {
        "401": _error("The token is missing or wrong.", "Message"),
        "500": _error("An internal error.", "Failure"),
        "503": {
            **_error("Not now: try again after `retry-after` seconds.", "Message"),
            "headers": _headers("retry-after"),
        },
    }


def _data_response() -> Document:
    either = {"oneOf": [{"$ref": f"#/components/schemas/{x}"} for x in ("Messages", "SubsetRows")]}
    optional = ("electric-schema", "electric-cursor", "electric-up-to-date", "electric-has-data")
    return {
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


def _refetch_response() -> Document:
    return {
        "description": "The shape was replaced: start again with this handle.",
        "headers": {"electric-handle": {"schema": _STRING}},
        "content": _json("Messages"),
    }


def _object(required: list[str], **properties: Document) -> Document:
    return {"type": "object", "required": required, "properties": properties}


def _schemas() -> Document:
    texts = {"type": "array", "items": _STRING}
    nullable = {"type": ["string", "null"]}
    rows = {"type": "array", "items": {"$ref": "#/components/schemas/Change"}}
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
    subset = _object([], **{one.field: one.schema for one in SUBSET_PARAMETERS})
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
            shapes={"type": "array", "items": {"$ref": "#/components/schemas/Shape"}},
            after=_STRING,
        ),
        "Health": _object(["status"], status={"enum": ["active", "waiting", "starting"]}),
        "Message": _object(["message"], message=_STRING, code=_STRING),
        "Failure": _object(["error"], error=_STRING),
        "Invalid": _object(["message"], message=_STRING, errors={"type": "object"}),
    }
