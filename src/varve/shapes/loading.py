"""Shapes of earlier runs: what the registry names is in the catalog again.

Invariant  of two rows that read as one definition by now the older one stays. A row that cannot be
           read is forgotten, and upkeep removes its directory.
"""

import logging
from collections.abc import Callable

from varve.foundation.errors import Corrupt
from varve.shapes.catalog import Catalog
from varve.shapes.definition import Definition, parse_definition
from varve.shapes.registry import RegisteredShape, Registry
from varve.shapes.shape import Shape

logger = logging.getLogger(__name__)


def load_shapes(
    registry: Registry,
    catalog: Catalog,
    make_shape: Callable[[RegisteredShape, Definition], Shape],
) -> dict[str, list[Shape]]:
    """Puts all shapes with a snapshot into the catalog; gives them by topic."""
    by_topic: dict[str, list[Shape]] = {}
    for row in registry.shapes():
        definition = _find_definition(row)
        if definition is None or catalog.find_by_definition(definition) is not None:
            registry.remove([row.handle])
            continue
        shape = make_shape(row, definition)
        catalog.add(shape)
        by_topic.setdefault(definition.topic, []).append(shape)
    return by_topic


def _find_definition(row: RegisteredShape) -> Definition | None:
    try:
        return parse_definition(row.comparable)
    except Corrupt as error:
        logger.warning("shape is dropped", exc_info=error, extra={"handle": row.handle})
        return None
