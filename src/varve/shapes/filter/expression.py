"""Expressions of a filter as a tree, and their normal form in SQL.

Invariant  `render` writes SQL that parses to the same tree; filters with equal SQL are equal.
"""

from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import NamedTuple

from varve.shapes.filter.value import Untyped, Value, show_json


class Column(NamedTuple):
    name: str


class Literal(NamedTuple):
    value: Value


class Parameter(NamedTuple):
    """A literal that is filled in later."""

    number: int


class Compare(NamedTuple):
    operator: str
    """One of = <> < <= > >=."""
    left: "Node"
    right: "Node"


class Distinct(NamedTuple):
    """IS DISTINCT FROM."""

    left: "Node"
    right: "Node"


class And(NamedTuple):
    items: tuple["Node", ...]


class Or(NamedTuple):
    items: tuple["Node", ...]


class Not(NamedTuple):
    item: "Node"


class Is(NamedTuple):
    """IS NULL, IS TRUE, IS FALSE."""

    item: "Node"
    word: str


class In(NamedTuple):
    item: "Node"
    choices: tuple["Node", ...]


class AnyOf(NamedTuple):
    """`= ANY` of an array that is not bound yet; binding turns it into IN."""

    item: "Node"
    array: "Node"
    """A parameter, or a literal."""
    type: str | None
    """What the elements are cast to."""


class Like(NamedTuple):
    operator: str
    """LIKE or ILIKE."""
    item: "Node"
    pattern: "Node"
    escape: str
    """The escape character of % and _, or an empty string."""


class Arithmetic(NamedTuple):
    operator: str
    """One of + - * / % and ||."""
    left: "Node"
    right: "Node"


class Negate(NamedTuple):
    item: "Node"


class Call(NamedTuple):
    name: str
    arguments: tuple["Node", ...]


class Cast(NamedTuple):
    item: "Node"
    type: str


class Extract(NamedTuple):
    """A member of an object or an element of an array."""

    operator: str
    """-> or ->>."""
    item: "Node"
    step: "Node"
    """The name of the member, or the index of the element."""


Node = (
    Column
    | Literal
    | Parameter
    | Compare
    | Distinct
    | And
    | Or
    | Not
    | Is
    | In
    | AnyOf
    | Like
    | Arithmetic
    | Negate
    | Call
    | Cast
    | Extract
)

PREDICATES = (Compare, Distinct, And, Or, Not, Is, In, AnyOf, Like)
"""Nodes with a result of true, false or unknown."""


def children(node: Node) -> Iterator[Node]:
    """The nodes directly below."""
    for field in node:
        if isinstance(field, Node):
            yield field
        elif isinstance(field, tuple):
            yield from field


def rebuild(node: Node, change: Callable[[Node], Node]) -> Node:
    """The node with each child replaced by the result of `change`."""
    fields = [
        change(field)
        if isinstance(field, Node)
        else tuple([change(item) for item in field])
        if isinstance(field, tuple)
        else field
        for field in node
    ]
    return type(node)._make(fields)


def render(node: Node) -> str:
    """The node as SQL, in its normal form."""
    match node:
        case Column(name):
            return _quoted(name, '"')
        case Literal(value):
            return _literal(value)
        case Parameter(number):
            return f"${number}"
        case And(items):
            return " AND ".join([_operand(item) for item in items])
        case Or(items):
            return " OR ".join([_operand(item) for item in items])
        case Not(item):
            return f"NOT ({render(item)})"
        case Is(item, word):
            return f"{_term(item)} IS {word}"
        case In(item, choices):
            return f"{_term(item)} IN ({', '.join([render(choice) for choice in choices])})"
        case AnyOf(item, array, type):
            rendered_array = render(array) if type is None else f"CAST({render(array)} AS {type}[])"
            return f"{_term(item)} = ANY({rendered_array})"
        case Distinct(left, right):
            return f"{_term(left)} IS DISTINCT FROM {_term(right)}"
        case Like(operator, item, pattern, escape):
            written = f"{_term(item)} {operator} {_term(pattern)}"
            return written if escape == "\\" else written + " ESCAPE " + _quoted(escape, "'")
        case Negate(item):
            return f"-({render(item)})"
        case Call(name, arguments):
            return f"{name}({', '.join([render(argument) for argument in arguments])})"
        case Cast(item, type):
            return f"CAST({render(item)} AS {type})"
        case _:
            left, right = children(node)
            return f"{_term(left)} {node.operator} {_term(right)}"


def _operand(node: Node) -> str:
    """An operand of AND or OR: only the two of them need parentheses."""
    return f"({render(node)})" if isinstance(node, And | Or) else render(node)


def _term(node: Node) -> str:
    is_atom = isinstance(node, Column | Literal | Parameter | Call | Cast)
    return render(node) if is_atom else f"({render(node)})"


def _literal(value: Value) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, int | Decimal):
        return str(value)
    if isinstance(value, list | dict):
        return "CAST(" + _quoted(show_json(value), "'") + " AS jsonb)"
    written = _quoted(value, "'")
    return written if type(value) is Untyped else f"CAST({written} AS text)"


def _quoted(text: str, quote: str) -> str:
    return quote + text.replace(quote, 2 * quote) + quote
