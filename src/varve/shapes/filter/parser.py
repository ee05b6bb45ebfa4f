"""Parses filters: sqlglot reads PostgreSQL's syntax, and supported parts become expressions.

Invariant  texts, their tokens and their depth are bounded before they are parsed. Any part of SQL
           that is not supported is rejected with its text; nothing is ignored silently. Column
           names are in the order of the request, each once; a selection is never empty.
"""

import re
from collections.abc import Callable
from decimal import Decimal
from typing import ClassVar, Final

from sqlglot import Token, TokenType, exp
from sqlglot.dialects.postgres import Postgres
from sqlglot.errors import SqlglotError

from varve.foundation.errors import InvalidRequest
from varve.shapes.filter import expression as sql
from varve.shapes.filter.evaluation import fold
from varve.shapes.filter.value import Untyped, parse_number

TEXT_BYTES_MAX: Final = 64 << 10
TOKENS_MAX: Final = 10_000
DEPTH_MAX: Final = 16
"""Parentheses within parentheses, as written and as normalised."""
_STEPS_MAX: Final = 64
"""Steps of the parser for each token; it goes back when a reading fails, nested ones too."""
_SHOWN_MAX: Final = 80


class _FilterSql(Postgres):
    """PostgreSQL without dollar-quoted strings, because sqlglot would read `($1,$2)` as one."""

    class Tokenizer(Postgres.Tokenizer):
        HEREDOC_STRINGS: ClassVar[list[str | tuple[str, str]]] = []
        SINGLE_TOKENS: ClassVar[dict[str, TokenType]] = {
            **Postgres.Tokenizer.SINGLE_TOKENS,
            "$": TokenType.PARAMETER,
        }

    class Parser(Postgres.Parser):  # type: ignore[misc, valid-type]  # sqlglot names it by a variable
        def reset(self) -> None:
            super().reset()
            self._step_count = 0

        def _advance(self, times: int = 1) -> None:
            self._step_count += 1
            if self._step_count > _STEPS_MAX * (self._tokens_size + _STEPS_MAX):
                raise InvalidRequest(
                    f"the filter takes more than {_STEPS_MAX} steps a token to parse at "
                    f"{self._tokens[min(self._index, self._tokens_size - 1)].text:.80}: nest less"
                )
            super()._advance(times)

        def _warn_unsupported(self) -> None:
            """Raises an error; sqlglot would keep the unsupported text as a command."""
            self.raise_error("Unexpected token")


def check_bytes(text: str) -> None:
    """Raises InvalidRequest for a text that is too long."""
    if len(text.encode(errors="surrogatepass")) > TEXT_BYTES_MAX:
        raise InvalidRequest(f"the filter is longer than {TEXT_BYTES_MAX} bytes")


def check_size(text: str) -> None:
    """Raises InvalidRequest if a rendered filter, with its parameters, is too large to parse."""
    check_bytes(text)
    if len(text) > TOKENS_MAX:
        tokenize(text)


def tokenize(text: str) -> list[Token]:
    """The tokens of a text; raises InvalidRequest for too many, and SqlglotError."""
    tokens = _FilterSql().tokenize(text)
    if len(tokens) > TOKENS_MAX:
        raise InvalidRequest(f"the filter has {len(tokens)} words; at most {TOKENS_MAX} may be")
    return tokens


def parse_sql(text: str) -> exp.Expr:
    """The one condition that a text holds; raises InvalidRequest."""
    try:
        tokens = tokenize(text)
        _check_tokens(tokens)
        exprs = _FilterSql().parser().parse_into(exp.Condition, tokens, text)
    except SqlglotError as error:
        raise InvalidRequest(f"not a filter: {shorten(text)}: {_fault(error)}") from None
    if len(exprs) != 1 or exprs[0] is None:
        raise InvalidRequest(f"a filter is one condition: {shorten(text)}")
    return exprs[0]


def _check_tokens(tokens: list[Token]) -> None:
    """Raises InvalidRequest for what sqlglot takes long to parse."""
    kinds = [TokenType.SEMICOLON, *[token.token_type for token in tokens], TokenType.SEMICOLON]
    depth = 0
    for token, before, kind, after in zip(tokens, kinds, kinds[1:], kinds[2:], strict=False):
        depth += kind in (TokenType.L_PAREN, TokenType.L_BRACKET)
        depth -= kind in (TokenType.R_PAREN, TokenType.R_BRACKET)
        if depth > DEPTH_MAX:
            raise InvalidRequest(f"the filter nests more than {DEPTH_MAX} deep at {token.text}")
        is_type = after is TokenType.R_BRACKET and before is not TokenType.R_BRACKET
        if kind is TokenType.L_BRACKET and before is not TokenType.ARRAY and not is_type:
            raise InvalidRequest(
                "brackets stand behind ARRAY, and once behind a type as in integer[]; arrays have "
                "one dimension, and the elements of JSON are reached by -> and ->>"
            )


def _fault(error: SqlglotError) -> str:
    """The position and reason of sqlglot's error, in one line."""
    faults = [fault for fault in getattr(error, "errors", []) if fault.get("highlight")]
    if not faults:
        return "the text ends within quotes" if "okeniz" in str(error) else "cannot be read"
    what = re.sub(r" for <class '.*'>", "", faults[0]["description"]).rstrip(".")
    return f"{what} near {shorten(faults[0]['highlight'])!r}"


def shorten(text: str) -> str:
    """A text as errors show it."""
    return text if len(text) <= _SHOWN_MAX else text[: _SHOWN_MAX - 3] + "..."


_LEVELS_MAX: Final = 48
_EXPONENT_MAX: Final = 100_000
_NUMBER: Final = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?", re.I | re.A)

_COMPARISONS: Final[dict[type[exp.Expr], str]] = {
    exp.EQ: "=",
    exp.NEQ: "<>",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
}
_ARITHMETIC: Final[dict[type[exp.Expr], str]] = {
    exp.Add: "+",
    exp.Sub: "-",
    exp.Mul: "*",
    exp.Div: "/",
    exp.Mod: "%",
    exp.DPipe: "||",
}
_FUNCTIONS: Final[dict[type[exp.Expr], str]] = {
    exp.Lower: "lower",
    exp.Upper: "upper",
    exp.Length: "length",
    exp.Abs: "abs",
}
_TYPES: Final[dict[exp.DType, str]] = {
    exp.DType.SMALLINT: "smallint",
    exp.DType.INT: "integer",
    exp.DType.BIGINT: "bigint",
    exp.DType.DECIMAL: "numeric",
    exp.DType.FLOAT: "real",
    exp.DType.DOUBLE: "double precision",
    exp.DType.TEXT: "text",
    exp.DType.VARCHAR: "text",
    exp.DType.BOOLEAN: "boolean",
    exp.DType.JSON: "jsonb",
    exp.DType.JSONB: "jsonb",
}


def parse_expression(text: str) -> sql.Node:
    """The condition of a text, its parameters not bound; raises InvalidRequest."""
    check_bytes(text)
    if not text.strip() or "\0" in text:
        raise InvalidRequest("the filter is empty, or holds a null byte")
    try:
        node = _condition(_ExpressionReader().read(parse_sql(text)), text)
    except RecursionError:
        raise InvalidRequest(f"the filter nests too deep: {shorten(text)}") from None
    if _depth(sql.render(node)) > DEPTH_MAX:
        raise InvalidRequest(f"the filter nests more than {DEPTH_MAX} deep: {shorten(text)}")
    return node


def parse_identifier(text: str) -> str:
    """The name of a column: as written in double quotes, else in lower case, as in SQL."""
    name = text.strip()
    if len(name) >= 2 and name[0] == name[-1] == '"':
        inner = name[1:-1]
        if inner and '"' not in inner.replace('""', ""):
            return inner.replace('""', '"')
    elif re.fullmatch(r"[^\W\d][\w$]*", name):
        return name.lower()
    raise InvalidRequest(
        f"{shorten(text)!r} is not a column: a name has letters, digits and _, "
        'or stands in double quotes, in which " is written twice'
    )


def _depth(text: str) -> int:
    """The nesting depth of parentheses in a rendered text."""
    depth = deepest = 0
    for character in re.sub(r"'[^']*'|\"[^\"]*\"", "", text):
        depth += (character == "(") - (character == ")")
        deepest = max(deepest, depth)
    return deepest


def _refuse(part: exp.Expr, why: str = "is not supported in a filter") -> InvalidRequest:
    if part.find(exp.Query) is not None:
        why = "holds a sub-query, and sub-queries are not supported in a filter"
    return InvalidRequest(f"{shorten(part.sql(dialect='postgres'))!r} {why}")


def _is_beyond_numbers(number: int | Decimal) -> bool:
    """Whether a number is too large or too small to be computed and rendered exactly."""
    return isinstance(number, Decimal) and (
        number.is_infinite() or abs(number.adjusted()) > _EXPONENT_MAX
    )


def _condition(node: sql.Node, text: str) -> sql.Node:
    """The node itself; raises InvalidRequest if it cannot be true or false."""
    is_value = isinstance(node, sql.Arithmetic | sql.Negate) or (
        isinstance(node, sql.Literal) and not isinstance(node.value, bool | Untyped | None)
    )
    if is_value or (isinstance(node, sql.Call) and node.name != "coalesce"):
        raise InvalidRequest(f"{shorten(text)!r} is a value, not a condition: compare it")
    return node


class _ExpressionReader:
    """Converts the tree of sqlglot to expressions."""

    def __init__(self) -> None:
        self._depth = 0
        self._methods: dict[type[exp.Expr], Callable[[exp.Expr], sql.Node]] = {
            exp.Paren: lambda part: self.read(part.this),
            exp.Column: self._column,
            exp.Literal: self._literal,
            exp.Boolean: lambda part: sql.Literal(bool(part.this)),
            exp.Null: lambda part: sql.Literal(None),
            exp.Parameter: self._parameter,
            exp.And: lambda part: sql.And(self._chain(part, exp.And)),
            exp.Or: lambda part: sql.Or(self._chain(part, exp.Or)),
            exp.Not: lambda part: sql.Not(self._truth(part.this)),
            exp.Is: self._is,
            exp.In: self._in,
            exp.Between: self._between,
            exp.NullSafeEQ: lambda part: sql.Not(self._distinct(part)),
            exp.NullSafeNEQ: self._distinct,
            exp.Like: lambda part: self._like(part, "\\"),
            exp.ILike: lambda part: self._like(part, "\\"),
            exp.Escape: self._escape,
            exp.Neg: lambda part: fold(sql.Negate(self._scalar(part.this))),
            exp.Cast: self._cast,
            exp.Coalesce: self._coalesce,
            exp.Concat: self._concat,
            exp.JSONExtract: lambda part: self._extract(part, "->"),
            exp.JSONExtractScalar: lambda part: self._extract(part, "->>"),
        }

    def read(self, part: exp.Expr) -> sql.Node:
        if self._depth == _LEVELS_MAX:
            raise InvalidRequest(f"the filter has more than {_LEVELS_MAX} levels of operators")
        self._depth += 1
        node = self._read(part)
        self._depth -= 1
        return node

    def _read(self, part: exp.Expr) -> sql.Node:
        kind = type(part)
        if kind in _COMPARISONS:
            return self._compare(part, _COMPARISONS[kind])
        if kind in _ARITHMETIC:
            left, right = self._scalar(part.this), self._scalar(part.expression)
            return fold(sql.Arithmetic(_ARITHMETIC[kind], left, right))
        if kind in _FUNCTIONS:
            if len(set(part.args) - {name for name, value in part.args.items() if not value}) > 1:
                raise _refuse(part, "has arguments that are not supported in a filter")
            return sql.Call(_FUNCTIONS[kind], (self._scalar(part.this),))
        method = self._methods.get(kind)
        if method is None:
            raise _refuse(part)
        return method(part)

    def _scalar(self, part: exp.Expr) -> sql.Node:
        """An operand of a comparison or a function."""
        node = self.read(part)
        if isinstance(node, sql.PREDICATES) and not isinstance(part, exp.Paren):
            raise _refuse(part, "stands within another condition: put it in parentheses")
        return node

    def _truth(self, part: exp.Expr) -> sql.Node:
        return _condition(self.read(part), part.sql(dialect="postgres"))

    def _chain(self, part: exp.Expr, kind: type[exp.Connector]) -> tuple[sql.Node, ...]:
        """The operands of a chain of AND or OR, which sqlglot nests to the left."""
        parts = []
        while isinstance(part.unnest(), kind):
            part = part.unnest()
            parts.append(part.expression)
            part = part.this
        items: list[sql.Node] = []
        for node in map(self._truth, (part, *reversed(parts))):
            # Operands in parentheses and BETWEEN are chains of their own.
            is_chain = isinstance(node, sql.And if kind is exp.And else sql.Or)
            items.extend(sql.children(node) if is_chain else [node])
        return tuple(items)

    def _column(self, part: exp.Expr) -> sql.Node:
        name = part.this
        if part.args.get("table") or not isinstance(name, exp.Identifier):
            raise _refuse(part, "names a table: a filter knows the columns of its own alone")
        return sql.Column(name.name if name.quoted else name.name.lower())

    def _literal(self, part: exp.Expr) -> sql.Node:
        if part.is_string:
            return sql.Literal(Untyped(part.name))
        number = parse_number(part.name) if _NUMBER.fullmatch(part.name) else None
        if number is None or _is_beyond_numbers(number):
            raise _refuse(part, "is not a number that a filter can hold")
        return sql.Literal(number)

    def _parameter(self, part: exp.Expr) -> sql.Node:
        number = part.name
        if not re.fullmatch("[0-9]{1,10}", number) or not 0 < int(number) < 1 << 31:
            raise _refuse(part, "is not a parameter: they are $1, $2 and so on")
        return sql.Parameter(int(number))

    def _is(self, part: exp.Expr) -> sql.Node:
        what = part.expression
        if isinstance(what, exp.Null):
            word = "NULL"
        elif isinstance(what, exp.Boolean):
            word = "TRUE" if what.this else "FALSE"
        else:
            raise _refuse(part)
        node = sql.Is(self.read(part.this), word)
        return sql.Not(node) if part.args.get("negate") else node

    def _in(self, part: exp.Expr) -> sql.Node:
        others = {name for name, value in part.args.items() if value} - {"this", "expressions"}
        if others or not part.expressions:
            raise _refuse(part, "needs a list of values in parentheses")
        choices = tuple([self._scalar(item) for item in part.expressions])
        return sql.In(self._scalar(part.this), choices)

    def _compare(self, part: exp.Expr, operator: str) -> sql.Node:
        quantified = _find_quantified(part.expression)
        item = self._scalar(part.this)
        if quantified is None:
            return sql.Compare(operator, item, self._scalar(part.expression))
        word, array = quantified
        if (operator, word) not in (("=", "ANY"), ("<>", "ALL")):
            raise _refuse(part, "is not supported in a filter: of arrays there are = ANY, <> ALL")
        node = self._any(item, array.unnest())
        return node if word == "ANY" else sql.Not(node)

    def _any(self, item: sql.Node, part: exp.Expr) -> sql.Node:
        type = None
        if isinstance(part, exp.Cast) and part.args["to"].this is exp.DType.ARRAY:
            type = _element_type(part)
            part = part.this.unnest()
        if isinstance(part, exp.Array):
            return self._any_listed(item, part, type)
        array = self.read(part)
        if not isinstance(array, sql.Parameter) and not (
            isinstance(array, sql.Literal) and isinstance(array.value, Untyped | None)
        ):
            raise _refuse(part, "is not an array: write ANY($1), ANY('{1,2}') or ANY(ARRAY[1, 2])")
        return sql.AnyOf(item, array, type)

    def _any_listed(self, item: sql.Node, part: exp.Array, type: str | None) -> sql.Node:
        if any(isinstance(element.unnest(), exp.Array) for element in part.expressions):
            raise _refuse(part, "holds arrays: put all of their elements into one ARRAY[...]")
        choices = [self._scalar(element) for element in part.expressions]
        if type is not None:
            choices = [fold(sql.Cast(choice, type)) for choice in choices]
        return sql.In(item, tuple(choices)) if choices else sql.Literal(False)

    def _between(self, part: exp.Expr) -> sql.Node:
        if part.args.get("symmetric"):
            raise _refuse(part)
        item = self._scalar(part.this)
        low, high = self._scalar(part.args["low"]), self._scalar(part.args["high"])
        return sql.And((sql.Compare(">=", item, low), sql.Compare("<=", item, high)))

    def _distinct(self, part: exp.Expr) -> sql.Node:
        return sql.Distinct(self._scalar(part.this), self._scalar(part.expression))

    def _like(self, part: exp.Expr, escape: str) -> sql.Node:
        operator = "ILIKE" if isinstance(part, exp.ILike) else "LIKE"
        item, pattern = self._scalar(part.this), self._scalar(part.expression)
        like = sql.Like(operator, item, pattern, escape)
        return sql.Not(like) if part.args.get("negate") else like

    def _escape(self, part: exp.Expr) -> sql.Node:
        escape = part.expression
        if not isinstance(escape, exp.Literal) or not escape.is_string or len(escape.name) > 1:
            raise _refuse(part, "escapes by something else than one character in quotes")
        if not isinstance(part.this, exp.Like | exp.ILike):
            raise _refuse(part)
        return self._like(part.this, escape.name)

    def _cast(self, part: exp.Expr) -> sql.Node:
        return fold(sql.Cast(self._scalar(part.this), _cast_type(part, part.args["to"])))

    def _coalesce(self, part: exp.Expr) -> sql.Node:
        return sql.Call(
            "coalesce", tuple([self.read(item) for item in (part.this, *part.expressions)])
        )

    def _concat(self, part: exp.Expr) -> sql.Node:
        return sql.Call("concat", tuple([self._scalar(item) for item in part.expressions]))

    def _extract(self, part: exp.Expr, operator: str) -> sql.Node:
        path = part.expression
        if isinstance(path, exp.JSONPath):
            step = path.expressions[-1]
            if len(path.expressions) != 2 or not isinstance(
                step, exp.JSONPathKey | exp.JSONPathSubscript
            ):
                raise _refuse(part)
            is_name = isinstance(step, exp.JSONPathKey)
            step_node: sql.Node = sql.Literal(Untyped(step.this) if is_name else int(step.this))
        else:
            step_node = self._scalar(path)
        if not isinstance(step_node, sql.Literal | sql.Parameter):
            raise _refuse(part, "needs a name in quotes or a number behind the arrow")
        return sql.Extract(operator, self._scalar(part.this), step_node)


def _find_quantified(part: exp.Expr) -> tuple[str, exp.Expr] | None:
    """ANY or ALL, and its array; sqlglot has no class for ALL and SOME."""
    if isinstance(part, exp.Any):
        return "ANY", part.this
    word = part.name.upper() if isinstance(part, exp.Anonymous) else ""
    if word not in ("ALL", "SOME") or len(part.expressions) != 1:
        return None
    return ("ALL" if word == "ALL" else "ANY"), part.expressions[0]


def _element_type(part: exp.Cast) -> str:
    type = part.args["to"]
    if len(type.expressions) != 1:
        raise _refuse(part, "casts to no array of one dimension: write it as integer[]")
    return _cast_type(part, type.expressions[0])


def _cast_type(part: exp.Expr, type: exp.Expr) -> str:
    name = _TYPES.get(type.this)
    others = {name for name, value in part.args.items() if value} - {"this", "to"}
    if name is None or type.expressions or others:
        raise _refuse(part, f"casts to a type that filters lack; they have {_type_names()}")
    return name


def _type_names() -> str:
    return ", ".join(sorted(set(_TYPES.values())))


COLUMNS_MAX: Final = 1000
_ENTRY: Final = re.compile(r"((?:\"[^\"]*\"|[^,\"])*)(,|$)")


def parse_columns(text: str) -> tuple[str, ...]:
    """The names in a list with commas; raises InvalidRequest."""
    return tuple(dict.fromkeys([parse_identifier(entry) for entry in split_list(text, "columns")]))


def split_list(text: str, what: str) -> list[str]:
    """The entries of a list with commas, which quoted names may hold too; raises InvalidRequest."""
    if len(text) > TEXT_BYTES_MAX:
        raise InvalidRequest(f"{what} are longer than {TEXT_BYTES_MAX} bytes")
    entries, position = [], 0
    while True:
        match = _ENTRY.match(text, position)
        if match is None or not match[1].strip():
            raise InvalidRequest(f"{what} have an empty or broken entry at {text[position:]!r:.80}")
        entries.append(match[1].strip())
        position = match.end()
        if not match[2]:
            break
    if len(entries) > COLUMNS_MAX:
        raise InvalidRequest(f"{what} are {len(entries)}; at most {COLUMNS_MAX} may be")
    return entries
