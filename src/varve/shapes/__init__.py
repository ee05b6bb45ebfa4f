"""Shapes: filtered live views of keyed topics, with their tables, snapshots, logs and filters."""

from varve.shapes.definition import Definition, LogMode, Replica, define
from varve.shapes.engine import ShapeEngine
from varve.shapes.offset import BEFORE_ALL, ShapeOffset
from varve.shapes.opening import (
    TopicOptions,
    open,  # noqa: A004, the word that users expect
)
from varve.shapes.settings import CompactionSettings, EngineSettings
from varve.shapes.shape import DropReason, Shape

__all__ = [
    "BEFORE_ALL",
    "CompactionSettings",
    "Definition",
    "DropReason",
    "EngineSettings",
    "LogMode",
    "Replica",
    "Shape",
    "ShapeEngine",
    "ShapeOffset",
    "TopicOptions",
    "define",
    "open",
]
