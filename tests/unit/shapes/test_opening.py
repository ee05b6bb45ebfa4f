"""The public face of shapes: an engine over an open store, and over a server."""

import json
from pathlib import Path
from typing import Any

import pytest

import varve
from tests.support.shape_engine import wait_until
from varve import shapes
from varve.foundation.errors import InvalidRequest, NotFound


def _rows(shape: shapes.Shape) -> list[Any]:
    offset, messages = shapes.BEFORE_ALL, []
    while offset < shape.latest or offset == shapes.BEFORE_ALL:
        end = shape.chunk_end(offset) or shape.latest
        messages += json.loads(b"[" + b",".join(shape.read(offset, end)) + b"]")
        offset = end
    return [message["value"] for message in messages if "value" in message]


def test_an_engine_over_a_store_keeps_its_shapes(path: Path) -> None:
    with varve.open(path / "store", maintain=False) as store:
        store.create_topic("orders")
        store.topic("orders").append(key=b"1", value=b'{"status":"open"}')
        options = {"orders": shapes.TopicOptions(key_column="id")}
        definition = shapes.define("orders", where="status = 'open'")
        with shapes.open(path / "shapes", cluster=store, topics=options) as engine:
            shape = engine.find_or_create(definition)
            wait_until(lambda: shape.is_snapshot_complete)
            assert _rows(shape) == [{"id": "1", "status": "open"}]
            with pytest.raises(NotFound):
                engine.find_or_create(shapes.define("missing"))
        store.topic("orders").append(key=b"2", value=b'{"status":"open"}')
        with shapes.open(path / "shapes", cluster=store, topics=options) as engine:
            again = engine.find_or_create(definition)
            assert again.handle == shape.handle
            wait_until(lambda: len(_rows(again)) == 2)
            assert [row["id"] for row in _rows(again)] == ["1", "2"]


def test_a_cluster_is_an_address_of_host_and_port(path: Path) -> None:
    with pytest.raises(InvalidRequest), shapes.open(path / "shapes", cluster="nowhere:port"):
        raise AssertionError("the address is not valid")
