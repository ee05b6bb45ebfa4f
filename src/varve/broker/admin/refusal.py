"""Why a part of a request is not carried out: a code for programs and a sentence for people."""

from varve.wire import ErrorCode
from varve.wire.errors import code_for


class Refusal(Exception):
    """Ends one part of a request; the others go on."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


def refusal_of(error: Exception) -> Refusal:
    """The refusal that an error of the engine comes to."""
    return error if isinstance(error, Refusal) else Refusal(code_for(error), str(error))
