"""Every code becomes an error of varve, and every error of varve a code, both ways alike."""

import pytest

from varve.foundation import errors
from varve.foundation.errors import StoreError
from varve.wire.errors import ErrorCode, RetriableError, code_for, raise_for_code

KINDS = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, StoreError) and kind is not StoreError
]


@pytest.mark.parametrize("code", [code for code in ErrorCode if code is not ErrorCode.NONE])
def test_every_code_is_raised_as_an_error_that_names_it(code: ErrorCode) -> None:
    with pytest.raises(StoreError, match=f"here: the server returned {code.name}: why"):
        raise_for_code(code, "here", "why")


def test_no_error_and_unknown_codes() -> None:
    raise_for_code(ErrorCode.NONE, "here")
    with pytest.raises(StoreError, match="here: the server returned error 9999"):
        raise_for_code(9999, "here")


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_survives_the_way_through_its_code(kind: type[StoreError]) -> None:
    """A client raises the error of the server, one above it, or one that says to try again."""
    code = code_for(kind("why"))
    with pytest.raises(StoreError) as caught:
        raise_for_code(code, "here")
    raised = type(caught.value)
    if code is ErrorCode.UNKNOWN_SERVER_ERROR:
        assert raised is errors.Unavailable
    else:
        assert issubclass(kind, raised) or issubclass(raised, RetriableError)
