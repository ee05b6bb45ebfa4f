"""Sets of characters, as expressions over names of topics know them.

Layout     a set is a number with one bit for each character of ASCII. Two characters that occur in
           no name stand for its beginning and its end.
"""

import string
from typing import Final

BEGIN: Final = 1 << 2
END: Final = 1 << 3
ANY: Final = ((1 << 128) - 1) & ~(BEGIN | END | 1 << ord("\n"))


def mask_of(characters: str) -> int:
    """The bits of characters; those outside ASCII occur in no name and have none."""
    found = 0
    for one in characters:
        found |= 1 << ord(one) if ord(one) < 128 else 0
    return found & ~(BEGIN | END)


_DIGITS: Final = mask_of(string.digits)
_WORD: Final = mask_of(string.ascii_letters + string.digits + "_")
_SPACE: Final = mask_of("\t\n\f\r ")
NAMED_CLASSES: Final = {
    "alnum": mask_of(string.ascii_letters + string.digits),
    "alpha": mask_of(string.ascii_letters),
    "digit": _DIGITS,
    "lower": mask_of(string.ascii_lowercase),
    "punct": mask_of(string.punctuation),
    "space": mask_of("\t\n\v\f\r "),
    "upper": mask_of(string.ascii_uppercase),
    "word": _WORD,
    "xdigit": mask_of(string.hexdigits),
}
ESCAPED_CLASSES: Final = {
    "d": _DIGITS,
    "D": ANY & ~_DIGITS,
    "w": _WORD,
    "W": ANY & ~_WORD,
    "s": _SPACE,
    "S": ANY & ~_SPACE,
}
