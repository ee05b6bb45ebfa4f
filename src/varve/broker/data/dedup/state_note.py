"""The note beside the ids of a partition: whose they are, and whether they may be used.

Layout     `<topic id>-<partition>.json` beside the directory of that name: `format`, `rules` in
           words, `secret` as 32 hexadecimal digits, and `boot`, the start of the machine during
           which the ids are open, empty when they were closed. docs/formats/dedup-ids.md
Invariant  ids are used only under the rules they were made by, and only if the log cannot have
           lost a record that they remember: they were closed, or the machine has run on since.
Crash      written aside and renamed. One that cannot be read is none: the ids are made anew.
"""

import json
import logging
from dataclasses import asdict, dataclass
from typing import Any, Final

from varve.dedup.ids import Secret
from varve.dedup.rules import DedupRules
from varve.disk import FileSystem, write_atomically

logger = logging.getLogger(__name__)

SECRET_BYTES: Final = 16
_FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class StateNote:
    """What is noted of the ids of a partition."""

    rules: str
    secret: str
    boot: str
    format: int = _FORMAT

    @property
    def secret_words(self) -> Secret:
        data = bytes.fromhex(self.secret)
        return int.from_bytes(data[:8], "little"), int.from_bytes(data[8:], "little")

    def allows(self, rules: DedupRules, boot: str) -> bool:
        """Whether the ids may be used under these rules, in this start of the machine."""
        return self.rules == describe_rules(rules) and self.boot in ("", boot)


def describe_rules(rules: DedupRules) -> str:
    """All of the rules that decide what is remembered, and for how long."""
    return f"{rules.fingerprint()}, {rules.lateness_ms} ms late"


def find_note(file_system: FileSystem, path: str) -> StateNote | None:
    """None where there is none that can be read."""
    if not file_system.exists(path):
        return None
    try:
        return _decode(json.loads(file_system.read(path)))
    except (OSError, ValueError, TypeError) as error:
        logger.warning("a note of ids cannot be read", extra={"path": path, "error": str(error)})
        return None


def write_note(file_system: FileSystem, path: str, note: StateNote) -> None:
    """Durable on return; raises OSError."""
    write_atomically(file_system, path, json.dumps(asdict(note)).encode())


def _decode(fields: dict[str, Any]) -> StateNote:
    note = StateNote(**fields)
    is_text = all(isinstance(one, str) for one in (note.rules, note.secret, note.boot))
    if note.format != _FORMAT or not is_text or len(bytes.fromhex(note.secret)) != SECRET_BYTES:
        raise ValueError(f"its fields {list(fields)} are not those of format {_FORMAT}")
    return note
