"""Where the texts of a row of JSON texts end, which commas and blanks join.

Invariant  the texts are valid JSON, checked when they were made: only strings, brackets and commas
           are looked at.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from varve.kernels.compile import kernel
from varve.kernels.memory import Bytes, load_u8

Integers = npt.NDArray[np.int64]

_QUOTE, _BACKSLASH, _COMMA = 0x22, 0x5C, 0x2C
_TEXT_BYTES_MIN: Final = 2


@kernel
def _find_commas(data: Bytes, integers: Integers) -> int:
    """Positions of the commas outside of strings and brackets, and how many there are."""
    count = 0
    depth = 0
    position = 0
    end = len(data)
    while position < end:
        byte = load_u8(data, position)
        if byte == _QUOTE:
            position += 1
            while position < end:
                inner = load_u8(data, position)
                if inner == _QUOTE:
                    break
                position += 2 if inner == _BACKSLASH else 1
        elif byte == 0x7B or byte == 0x5B:
            depth += 1
        elif byte == 0x7D or byte == 0x5D:
            depth -= 1
        elif byte == _COMMA and depth == 0:
            integers[count] = position
            count += 1
        position += 1
    return count


def split_messages(joined: bytes) -> list[bytes]:
    """The texts one by one, without the blanks around them; a comma before the first is none."""
    data = np.frombuffer(joined, np.uint8)
    found = np.empty(len(joined) // _TEXT_BYTES_MIN + 1, np.int64)
    count = _find_commas(data, found)
    messages: list[bytes] = []
    start = 0
    for end in (*found[:count].tolist(), len(joined)):
        message = joined[start:end].strip()
        if message:
            messages.append(message)
        start = end + 1
    return messages


def warm() -> None:
    split_messages(b'{"a":"x,y"},\n[1,2]')
