"""The filter of a shape: one condition over the columns of a row.

Texts that differ only in their literals are parsed once: the text without them is a pattern, and
the literals are bound to it like parameters.

Threads    a filter is immutable; its closure is compiled at the first use.
"""

import re
from collections.abc import Mapping
from functools import cached_property, lru_cache
from typing import Final

from varve.foundation.errors import InvalidRequest
from varve.shapes.feed.row import Row
from varve.shapes.filter.evaluation import Evaluation, bind, compile_truth
from varve.shapes.filter.expression import Column, Node, children, render
from varve.shapes.filter.parser import TEXT_BYTES_MAX, parse_expression
from varve.shapes.filter.value import RowValues

PARAMETERS_MAX: Final = 1000
_PATTERNS_MAX: Final = 1024
_PATTERN_CHARACTERS_MAX: Final = 2048
"""Longer patterns are not cached; a parsed character takes up to 30 bytes."""
_FIRST_LITERAL: Final = 1_000_000
"""Literals are numbered from here on, above every parameter."""
_PLAIN: Final = re.compile(r"(?:[^'\"$\\/;-]|\"[^\"]*\"|[=<>(,]\s*'(?:[^']|'')*')*")
_LITERAL: Final = re.compile(
    r"(\"[^\"]*\")|'((?:[^']|'')*)'|(?<=[=<>(,] )([0-9]{1,18})(?![\w.])", re.ASCII
)


class Where:
    """A condition; two are equal if their normal forms, `sql`, are."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.sql = render(node)

    @classmethod
    def parse(cls, text: str, params: Mapping[int, str] | None = None) -> "Where":
        """The condition of a text and its parameters; raises InvalidRequest."""
        values: dict[int, str | int] = dict(params or {})
        if len(values) > PARAMETERS_MAX or sorted(values) != list(range(1, len(values) + 1)):
            raise InvalidRequest(
                f"parameters are numbered 1, 2 and so on without gaps, at most {PARAMETERS_MAX}: "
                f"{sorted(values)!s:.80}"
            )
        if len(text) <= TEXT_BYTES_MAX and _PLAIN.fullmatch(text):
            where = cls._from_pattern(text, values)
            if where is not None:
                return where
        return cls(bind(parse_expression(text), values))

    @classmethod
    def _from_pattern(cls, text: str, values: dict[int, str | int]) -> "Where | None":
        """None for an invalid text; parsing the original text then raises the error."""
        literals: list[str | int] = []

        def number(match: re.Match[str]) -> str:
            if match[1] is not None:
                return match[1]
            literals.append(int(match[3]) if match[3] else match[2].replace("''", "'"))
            return f"${_FIRST_LITERAL + len(literals)}"

        pattern = _LITERAL.sub(number, text)
        try:
            is_short = len(pattern) <= _PATTERN_CHARACTERS_MAX
            node = _parse_pattern(pattern) if is_short else parse_expression(pattern)
        except InvalidRequest:
            return None
        values.update(enumerate(literals, _FIRST_LITERAL + 1))
        return cls(bind(node, values))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Where) and self.sql == other.sql

    def __hash__(self) -> int:
        return hash(self.sql)

    def __repr__(self) -> str:
        return f"Where({self.sql!r})"

    @cached_property
    def columns(self) -> frozenset[str]:
        """The columns that the condition uses."""
        return frozenset(_columns(self.node))

    @cached_property
    def truth(self) -> Evaluation:
        """True, False or None for the values of a row."""
        return compile_truth(self.node)

    def matches(self, row: Row) -> bool:
        """Whether the condition is true for a row; unknown is not true."""
        return self.is_true(RowValues(row))

    def is_true(self, values: RowValues) -> bool:
        """Whether the condition is true for the values of a row."""
        values.work = 0
        return self.truth(values) is True


@lru_cache(_PATTERNS_MAX)
def _parse_pattern(pattern: str) -> Node:
    return parse_expression(pattern)


def _columns(node: Node) -> set[str]:
    if isinstance(node, Column):
        return {node.name}
    return {name for child in children(node) for name in _columns(child)}
