"""Compiles expressions to closures over a row's values, in SQL's three-valued logic.

Invariant  a closure never raises, whatever a row holds: a value that cannot be computed is unknown,
           like null. So is one beyond the characters that a filter may read of a row: work on large
           values is counted before it is done.
"""

from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from itertools import islice
from operator import eq, ge, gt, le, lt, ne
from typing import Final

from varve.foundation.errors import InvalidRequest
from varve.shapes.filter import expression as sql
from varve.shapes.filter.like import LikePattern, split_cost
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

Evaluation = Callable[[RowValues], Value]

_ORDERS: Final = {"=": eq, "<>": ne, "<": lt, "<=": le, ">": gt, ">=": ge}
_DIGITS_MAX: Final = 1000
"""Limit of digits of numbers that are computed when a filter is parsed."""
ELEMENTS_MAX: Final = 4000
"""Limit for all arrays of a filter; the limit of tokens bounds lists in parentheses."""
FILLED_MAX: Final = 1 << 20
"""Characters that parameters put into a filter, which may name one of them thousands of times."""


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
            return _cast(compile_node(item), type)
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
    value = compile_node(node)(RowValues({}))
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
    is_negated = operator == "<>"

    def compared(values: RowValues) -> bool | None:
        first, second = operand(values), other(values)
        if not values.may_read(first, second):
            return None
        if operator in ("=", "<>"):
            return _negated(is_negated, is_equal(first, second))
        result = compare(first, second)
        return None if result is None else bool(order(result, 0))

    return compared


def _cast(operand: Evaluation, type: str) -> Evaluation:
    def cast(values: RowValues) -> Value:
        value = operand(values)
        return cast_value(value, type) if values.may_read(value) else None

    return cast


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
            return _uncommon(order, value, literal) if values.may_read(value) else None
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
        if first is None or second is None or not values.may_read(first, second):
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
        if (kind is dict or kind is list or kind is Untyped) and not values.may_read(value):
            return None
        if kind in by_type and key_of(value) in by_type[kind]:
            return True
        if kind is Untyped:
            return _any_equal(values, value, literals)
        return False if counts.get(kind) == len(literals) else None

    return chosen


def _in_any(operand: Evaluation, choices: Sequence[Evaluation]) -> Evaluation:
    return lambda values: _any_equal(
        values, operand(values), [choice(values) for choice in choices]
    )


def _any_equal(values: RowValues, value: Value, choices: Sequence[Value]) -> bool | None:
    result: bool | None = False
    for choice in choices:
        truth = is_equal(value, choice) if values.may_read(value, choice) else None
        if truth:
            return True
        if truth is None:
            result = None
    return result


def _like(node: sql.Like) -> Evaluation:
    item, pattern = compile_node(node.item), compile_node(node.pattern)
    is_blind = node.operator == "ILIKE"

    def read(like: str) -> LikePattern:
        return LikePattern(like, node.escape, is_case_blind=is_blind)

    literal = node.pattern.value if isinstance(node.pattern, sql.Literal) else None
    literal_pattern = read(literal) if isinstance(literal, str) else None

    def matches(values: RowValues) -> bool | None:
        text, like = item(values), pattern(values)
        if not isinstance(text, str) or not isinstance(like, str):
            return None
        if literal_pattern is not None:
            like_pattern = literal_pattern
        elif values.may_spend(split_cost(like)):
            like_pattern = read(like)
        else:
            return None
        if not like_pattern.is_valid or not values.may_spend(like_pattern.cost(text)):
            return None
        return like_pattern.matches(text)

    return matches


def _arithmetic(operator: str, left: Evaluation, right: Evaluation) -> Evaluation:
    if operator == "||":

        def together(values: RowValues) -> Value:
            first, second = left(values), right(values)
            return joined(first, second) if values.may_read(first, second) else None

        return together

    def computed(values: RowValues) -> Value:
        first, second = _number(values, left), _number(values, right)
        if first is None or second is None:
            return None
        try:
            return compute(operator, first, second)
        except ArithmeticError:
            return None

    return computed


def _number(values: RowValues, operand: Evaluation) -> int | Decimal | None:
    value = operand(values)
    is_read = not isinstance(value, list | dict) and values.may_read(value)
    return as_number(value) if is_read else None


def _call(name: str, arguments: Sequence[Evaluation]) -> Evaluation:
    if name == "coalesce":
        return lambda values: next(
            (value for item in arguments if (value := item(values)) is not None), None
        )
    if name == "concat":
        return _concat(arguments)
    (operand,) = arguments
    if name == "abs":
        return lambda values: absolute(_number(values, operand))
    change: Callable[[str], Value] = {"lower": str.lower, "upper": str.upper, "length": len}[name]

    def changed(values: RowValues) -> Value:
        value = operand(values)
        is_read = isinstance(value, str) and (name == "length" or values.may_read(value))
        return change(value) if is_read else None

    return changed


def _concat(arguments: Sequence[Evaluation]) -> Evaluation:
    """All values as one text, as PostgreSQL's function: null is empty, and true is t."""

    def together(values: RowValues) -> Value:
        parts = [item(values) for item in arguments]
        if not values.may_read(*parts):
            return None
        texts = [str(part)[0].lower() if isinstance(part, bool) else show(part) for part in parts]
        return "".join([text for text in texts if text is not None])

    return together


def _extract(operator: str, item: Evaluation, step: Evaluation) -> Evaluation:
    def extracted(values: RowValues) -> Value:
        value = item(values)
        if isinstance(value, str):
            value = find_json(value) if values.may_read(value) else None
        element = member(value, step(values))
        if operator == "->":
            return element
        return show(element) if isinstance(element, str) or values.may_read(element) else None

    return extracted
