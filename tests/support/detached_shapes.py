"""Shapes of a topic without feed, files or threads, for tests of what is routed to them."""

import tempfile
from functools import cache
from random import Random
from typing import Any

from varve.disk import MemoryFileSystem
from varve.foundation.clock import ManualClock
from varve.shapes.definition import define
from varve.shapes.engine import ShapeEngine
from varve.shapes.feed.topic_feed import TopicFeed
from varve.shapes.offset import ShapeOffset
from varve.shapes.shape import Shape
from varve.shapes.topic import ShapeTopic


def detached_shape(handle: str, *, start: int = 0, **parameters: Any) -> Shape:
    """A shape of topic t with a snapshot up to a transaction; its files do not exist."""
    return Shape(
        _engine(),
        _topic(),
        handle,
        define("t", **parameters),
        created_ms=0,
        start=ShapeOffset(start, 0),
    )


@cache
def _topic() -> ShapeTopic:
    return ShapeTopic(_engine(), "t")


@cache
def _engine() -> ShapeEngine:
    clock = ManualClock()

    def open_feed(topic: str) -> TopicFeed:
        raise AssertionError("a detached shape has no feed")

    return ShapeEngine(
        tempfile.mkdtemp(),
        open_feed,
        fs=MemoryFileSystem(clock),
        clock=clock,
        random=Random(7),
    )
