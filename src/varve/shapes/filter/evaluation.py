"""Compiles expressions to closures over a row's values, in SQL's three-valued logic.

Invariant  a closure never raises, whatever a row holds: a value that cannot be computed is unknown,
           like null. No LIKE pattern makes a match slow: the pieces between `%` are searched from
           left to right, each at its first position, which suffices because `%` matches any text
           between them.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from decimal import DecimalException
from itertools import islice
from operator import eq, ge, gt, le, lt, ne
from typing import Final

from varve.foundation.errors import InvalidRequest
from varve.shapes.filter import expression as sql
from varve.shapes.filter.value import (
    RowValues,
    Untyped,
    Value,
    absolute,
    as_number,
    cast_value,
    compare,
    compute,
    find_boolean,
    find_json,
    is_equal,
    joined,
    key_of,
    member,
    readings,
    show,
    split_array,
)

Matcher = Callable[[str], bool]


def compile_like(pattern: str, escape: str, *, is_case_blind: bool) -> Matcher | None:
    """Whether a text matches; None when the pattern ends with its escape character."""
    pieces = _pieces(pattern, escape)
    if pieces is None:
        return None
    flags = re.DOTALL | re.IGNORECASE if is_case_blind else re.DOTALL
    if len(pieces) == 1:
        whole = re.compile(pieces[0], flags)
        return lambda text: whole.fullmatch(text) is not None
    first = re.compile(pieces[0], flags)
    middle = [re.compile(piece, flags) for piece in pieces[1:-1] if piece]
    last, last_size = re.compile(pieces[-1], flags), _size(pieces[-1])

    def matches(text: str) -> bool:
        match = first.match(text)
        if match is None:
            return False
        position = match.end()
        for piece in middle:
            match = piece.search(text, position)
            if match is None:
                return False
            position = match.end()
        start = len(text) - last_size
        return start >= position and last.fullmatch(text, start) is not None

    return matches


def _pieces(pattern: str, escape: str) -> list[str] | None:
    """Regular expressions of the pieces between `%`; each matches a fixed number of characters."""
    pieces, characters = [""], iter(pattern)
    for character in characters:
        if escape and character == escape:
            literal = next(characters, None)
            if literal is None:
                return None
            pieces[-1] += re.escape(literal)
        elif character == "%":
            pieces.append("")
        else:
            pieces[-1] += "." if character == "_" else re.escape(character)
    return pieces


def _size(piece: str) -> int:
    """How many characters a piece takes."""
    return len(re.sub(r"\\.", ".", piece, flags=re.DOTALL))


Evaluation = Callable[[RowValues], Value]

_ORDERS: Final = {"=": eq, "<>": ne, "<": lt, "<=": le, ">": gt, ">=": ge}
_DIGITS_MAX: Final = 1000
"""Limit of digits of numbers that are computed when a filter is parsed."""
ELEMENTS_MAX: Final = 4000
"""Limit for all arrays of a filter; the limit of tokens bounds lists in parentheses."""
FILLED_MAX: Final = 1 << 20
"""Characters that parameters put into a filter, which may name one of them thousands of times."""
_NO_ROW: Final = RowValues({})


def compile_node(node: sql.Node) -> Evaluation:
    """Computes the value of the node for a row."""
    match node:
        case sql.Column(name):
            return lambda values: values[name]
        case sql.Literal(value):
            return lambda values: value
        case sql.Parameter() | sql.AnyOf():
            raise InvalidRequest(f"{sql.render(node):.80} has no value: its parameters are open")
        case sql.Compare(operator, left, right):
            return _comparison(operator, left, right)
        case sql.Distinct(left, right):
            return _distinct(compile_node(left), compile_node(right))
        case sql.And(items) | sql.Or(items):
            return _chain([compile_truth(item) for item in items], isinstance(node, sql.Or))
        case sql.Not(item):
            truth = compile_truth(item)
            return lambda values: _negated(True, truth(values))
        case sql.Is(item, word):
            return _is(item, word)
        case sql.In(item, choices):
            return _in(compile_node(item), choices)
        case sql.Like():
            return _like(node)
        case sql.Arithmetic(operator, left, right):
            return _arithmetic(operator, compile_node(left), compile_node(right))
        case sql.Negate(item):
            return _arithmetic("-", lambda values: 0, compile_node(item))
        case sql.Call(name, arguments):
            return _call(name, [compile_node(argument) for argument in arguments])
        case sql.Cast(item, type):
            operand = compile_node(item)
            return lambda values: cast_value(operand(values), type)
        case sql.Extract(operator, item, step):
            return _extract(operator, compile_node(item), compile_node(step))


def compile_truth(node: sql.Node) -> Evaluation:
    """Whether the node is true for a row: True, False or None."""
    operand = compile_node(node)
    if isinstance(node, sql.PREDICATES):
        return operand
    return lambda values: as_truth(operand(values))


def fold(node: sql.Node) -> sql.Node:
    """Computes a value that depends on no column; raises InvalidRequest without one."""
    if not isinstance(node, sql.Arithmetic | sql.Negate | sql.Cast):
        return node
    literals = [child.value for child in sql.children(node) if isinstance(child, sql.Literal)]
    if len(literals) < len(list(sql.children(node))):
        return node
    value = compile_node(node)(_NO_ROW)
    if value is None and None not in literals:
        raise InvalidRequest(f"{sql.render(node):.80} has no value")
    is_long = isinstance(value, int) and abs(value) >= 10**_DIGITS_MAX
    return node if is_long else sql.Literal(value)


def bind(node: sql.Node, values: Mapping[int, str | int]) -> sql.Node:
    """The node with its parameters filled in; raises InvalidRequest."""
    return _ParameterBinding(values).bind(node)


class _ParameterBinding:
    """Fills parameters in, one after another."""

    def __init__(self, values: Mapping[int, str | int]) -> None:
        self._values = values
        self._characters_left = FILLED_MAX
        self._elements_left = ELEMENTS_MAX

    def bind(self, node: sql.Node) -> sql.Node:
        if isinstance(node, sql.Parameter):
            return self._fill(node.number)
        if isinstance(node, sql.Column | sql.Literal):
            return node
        bound = sql.rebuild(node, self.bind)
        return self._chosen(bound) if isinstance(bound, sql.AnyOf) else fold(bound)

    def _fill(self, number: int) -> sql.Literal:
        value = self._values.get(number)
        if value is None:
            raise InvalidRequest(f"parameter ${number} has no value: give params[{number}]")
        if not isinstance(value, str):
            return sql.Literal(value)
        self._characters_left -= len(value)
        if self._characters_left < 0:
            raise InvalidRequest(
                f"the filter has more than {FILLED_MAX} characters of parameters, "
                "each counted as often as it is used"
            )
        return sql.Literal(Untyped(value))

    def _chosen(self, node: sql.AnyOf) -> sql.Node:
        """The condition as IN over the elements; False for an empty array."""
        text = node.array.value if isinstance(node.array, sql.Literal) else None
        if text is None:
            return sql.Compare("=", node.item, sql.Literal(None))
        elements = list(islice(split_array(str(text)), self._elements_left + 1))
        self._elements_left -= len(elements)
        if self._elements_left < 0:
            raise InvalidRequest(f"the filter has more than {ELEMENTS_MAX} elements of arrays")
        choices: list[sql.Node] = [
            sql.Literal(None if element is None else Untyped(element)) for element in elements
        ]
        if node.type is not None:
            choices = [fold(sql.Cast(choice, node.type)) for choice in choices]
        return sql.In(node.item, tuple(choices)) if choices else sql.Literal(False)


def as_truth(value: Value) -> bool | None:
    """A value used as a condition; a value that is not a boolean is unknown."""
    if value is None or isinstance(value, bool):
        return value
    return find_boolean(value) if type(value) is Untyped else None


def _comparison(operator: str, left: sql.Node, right: sql.Node) -> Evaluation:
    order = _ORDERS[operator]
    if isinstance(left, sql.Literal) and not isinstance(right, sql.Literal):
        flipped = operator.translate(str.maketrans("<>", "><")) if operator != "<>" else operator
        return _comparison(flipped, right, left)
    operand = compile_node(left)
    if isinstance(right, sql.Literal):
        return _with_literal(order, operand, right.value)
    other = compile_node(right)
    if operator in ("=", "<>"):
        return lambda values: _negated(operator == "<>", is_equal(operand(values), other(values)))

    def ordered(values: RowValues) -> bool | None:
        result = compare(operand(values), other(values))
        return None if result is None else bool(order(result, 0))

    return ordered


def _with_literal(
    order: Callable[[Value, Value], bool], operand: Evaluation, literal: Value
) -> Evaluation:
    """A comparison with a literal: one look-up by the type of the other side."""
    if literal is None:
        return lambda values: None
    by_type = readings(literal)

    def compared(values: RowValues) -> bool | None:
        value = operand(values)
        kind = type(value)
        if kind is dict or kind is list or (kind is Untyped and kind not in by_type):
            return _uncommon(order, value, literal)
        expected = by_type.get(kind)
        return None if expected is None else order(value, expected)

    return compared


def _uncommon(order: Callable[[Value, Value], bool], value: Value, literal: Value) -> bool | None:
    if order is eq or order is ne:
        return _negated(order is ne, is_equal(value, literal))
    result = compare(value, literal)
    return None if result is None or isinstance(value, dict | list) else bool(order(result, 0))


def _negated(is_negated: bool, truth: bool | None) -> bool | None:
    return truth if truth is None else truth != is_negated


def _distinct(left: Evaluation, right: Evaluation) -> Evaluation:
    def distinct(values: RowValues) -> bool:
        first, second = left(values), right(values)
        if first is None or second is None:
            return first is not second
        return is_equal(first, second) is not True

    return distinct


def _chain(items: Sequence[Evaluation], decisive: bool) -> Evaluation:
    """AND, which one False decides, or OR, which one True decides; else it may be unknown."""

    def combined(values: RowValues) -> bool | None:
        result: bool | None = not decisive
        for item in items:
            truth: bool | None = item(values)
            if truth is decisive:
                return decisive
            if truth is None:
                result = None
        return result

    return combined


def _is(item: sql.Node, word: str) -> Evaluation:
    if word == "NULL":
        operand = compile_node(item)
        return lambda values: operand(values) is None
    truth, expected = compile_truth(item), word == "TRUE"
    return lambda values: truth(values) is expected


def _in(operand: Evaluation, choices: Sequence[sql.Node]) -> Evaluation:
    literals = [choice.value for choice in choices if isinstance(choice, sql.Literal)]
    if len(literals) < len(choices) or any(isinstance(item, list | dict) for item in literals):
        return _in_any(operand, [compile_node(choice) for choice in choices])
    by_type: dict[type, set[object]] = {}
    counts: dict[type, int] = {}
    for literal in literals:
        for kind, reading in readings(literal).items() if literal is not None else ():
            by_type.setdefault(kind, set()).add(key_of(reading))
            counts[kind] = counts.get(kind, 0) + 1

    def chosen(values: RowValues) -> bool | None:
        value = operand(values)
        if value is None:
            return None
        kind = type(value)
        if kind in by_type and key_of(value) in by_type[kind]:
            return True
        if kind is Untyped:
            return _any_equal(value, literals)
        return False if counts.get(kind) == len(literals) else None

    return chosen


def _in_any(operand: Evaluation, choices: Sequence[Evaluation]) -> Evaluation:
    return lambda values: _any_equal(operand(values), [choice(values) for choice in choices])


def _any_equal(value: Value, choices: Sequence[Value]) -> bool | None:
    result: bool | None = False
    for choice in choices:
        truth = is_equal(value, choice)
        if truth:
            return True
        if truth is None:
            result = None
    return result


def _like(node: sql.Like) -> Evaluation:
    item, pattern = compile_node(node.item), compile_node(node.pattern)
    is_blind = node.operator == "ILIKE"

    def compiled(like: str) -> Matcher | None:
        return compile_like(like, node.escape, is_case_blind=is_blind)

    literal = node.pattern.value if isinstance(node.pattern, sql.Literal) else None
    literal_matcher = compiled(literal) if isinstance(literal, str) else None

    def matches(values: RowValues) -> bool | None:
        text, like = item(values), pattern(values)
        if not isinstance(text, str) or not isinstance(like, str):
            return None
        matcher = literal_matcher if like is literal else compiled(like)
        return None if matcher is None else matcher(text)

    return matches


def _arithmetic(operator: str, left: Evaluation, right: Evaluation) -> Evaluation:
    if operator == "||":
        return lambda values: joined(left(values), right(values))

    def computed(values: RowValues) -> Value:
        first, second = as_number(left(values)), as_number(right(values))
        if first is None or second is None:
            return None
        try:
            return compute(operator, first, second)
        except (DecimalException, ZeroDivisionError):
            return None

    return computed


def _call(name: str, arguments: Sequence[Evaluation]) -> Evaluation:
    if name == "coalesce":
        return lambda values: next(
            (value for item in arguments if (value := item(values)) is not None), None
        )
    (operand,) = arguments
    if name == "abs":
        return lambda values: absolute(as_number(operand(values)))
    change: Callable[[str], Value] = {"lower": str.lower, "upper": str.upper, "length": len}[name]

    def changed(values: RowValues) -> Value:
        value = operand(values)
        return change(value) if isinstance(value, str) else None

    return changed


def _extract(operator: str, item: Evaluation, step: Evaluation) -> Evaluation:
    def extracted(values: RowValues) -> Value:
        value = item(values)
        if isinstance(value, str):
            value = find_json(value)
        element = member(value, step(values))
        return show(element) if operator == "->>" else element

    return extracted
