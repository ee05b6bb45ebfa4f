"""The text of a filter, as sqlglot reads PostgreSQL.

Invariant  texts, their tokens and their depth are bounded before they are looked at closely.
"""

import re
from typing import ClassVar, Final

from sqlglot import Token, TokenType, exp
from sqlglot.dialects.postgres import Postgres
from sqlglot.errors import SqlglotError

from varve.foundation.errors import InvalidRequest

TEXT_BYTES_MAX: Final = 64 << 10
TOKENS_MAX: Final = 10_000
DEPTH_MAX: Final = 16
"""Parentheses within parentheses, as written and as normalised."""
_SHOWN_MAX: Final = 80


class _FilterSql(Postgres):
    """PostgreSQL without strings between dollars, as which sqlglot reads `($1,$2)`."""

    class Tokenizer(Postgres.Tokenizer):
        HEREDOC_STRINGS: ClassVar[list[str | tuple[str, str]]] = []
        SINGLE_TOKENS: ClassVar[dict[str, TokenType]] = {
            **Postgres.Tokenizer.SINGLE_TOKENS,
            "$": TokenType.PARAMETER,
        }

    class Parser(Postgres.Parser):  # type: ignore[misc, valid-type]  # sqlglot names it by a variable
        def _warn_unsupported(self) -> None:
            """What sqlglot would keep as a text that it cannot read is refused."""
            self.raise_error("Unexpected token")


def check_bytes(text: str) -> None:
    """Raises InvalidRequest for a text that is too long."""
    if len(text.encode(errors="surrogatepass")) > TEXT_BYTES_MAX:
        raise InvalidRequest(f"the filter is longer than {TEXT_BYTES_MAX} bytes")


def check_size(text: str) -> None:
    """Whether a filter that was rendered, parameters and all, can be read again.

    Raises InvalidRequest.
    """
    check_bytes(text)
    if len(text) > TOKENS_MAX:
        tokenize(text)


def tokenize(text: str) -> list[Token]:
    """The words of a text; raises InvalidRequest for too many, SqlglotError."""
    tokens = _FilterSql().tokenize(text)
    if len(tokens) > TOKENS_MAX:
        raise InvalidRequest(f"the filter has {len(tokens)} words; at most {TOKENS_MAX} may be")
    return tokens


def parse_sql(text: str) -> exp.Expr:
    """The one condition that a text holds; raises InvalidRequest."""
    try:
        tokens = tokenize(text)
        depth = 0
        for token in tokens:
            depth += token.token_type in (TokenType.L_PAREN, TokenType.L_BRACKET)
            depth -= token.token_type in (TokenType.R_PAREN, TokenType.R_BRACKET)
            if depth > DEPTH_MAX:
                raise InvalidRequest(f"the filter nests more than {DEPTH_MAX} deep at {token.text}")
        found = _FilterSql().parser().parse_into(exp.Condition, tokens, text)
    except SqlglotError as error:
        raise InvalidRequest(f"no filter: {shorten(text)}: {_fault(error)}") from None
    except RecursionError:
        raise InvalidRequest(f"the filter nests too deep: {shorten(text)}") from None
    if len(found) != 1 or found[0] is None:
        raise InvalidRequest(f"a filter is one condition: {shorten(text)}")
    return found[0]


def _fault(error: SqlglotError) -> str:
    """Where sqlglot stopped, in a line."""
    faults = [fault for fault in getattr(error, "errors", []) if fault.get("highlight")]
    if not faults:
        return "the text ends within quotes" if "okeniz" in str(error) else "cannot be read"
    what = re.sub(r" for <class '.*'>", "", faults[0]["description"]).rstrip(".")
    return f"{what} near {shorten(faults[0]['highlight'])!r}"


def shorten(text: str) -> str:
    """A text as errors show it."""
    return text if len(text) <= _SHOWN_MAX else text[: _SHOWN_MAX - 3] + "..."
