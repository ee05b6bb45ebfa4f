"""Codes that older clients do not know, in the words of their time."""

from typing import Final

from varve.wire import ErrorCode

_FIRST_WITH_FENCED: Final = 2


def code_for(error: ErrorCode, version: int) -> ErrorCode:
    """The code of an answer to AddPartitionsToTxn, AddOffsetsToTxn or EndTxn of this version."""
    if error is ErrorCode.PRODUCER_FENCED and version < _FIRST_WITH_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return error
