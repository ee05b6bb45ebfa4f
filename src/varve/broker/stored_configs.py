"""Configs that clients set and that are not of topics: of single groups, and of the broker where
they have no meaning here.

Layout     `varve-configs.json`: `broker`, values by name; `groups`, by id the values by name.
           docs/reference/formats/directory.md
Invariant  only names that Kafka knows are stored. What is stored never keeps a broker from
           starting: a value of a group counts as the nearest one that the broker's settings allow.
Crash      see `directory_document`.
Threads    changed off the loop, one change at a time under `_lock`; `broker` and `groups` are
           replaced as a whole and read without it.
"""

import threading
from collections.abc import Mapping, Sequence
from typing import Any, Final

from varve.broker.security.directory_document import DirectoryDocument
from varve.broker.settings import ConsumerGroupConfigs
from varve.commit_log.health import DirectoryHealth
from varve.disk import FileSystem
from varve.foundation.errors import InvalidRequest
from varve.foundation.settings import parse_settings

CONFIGS_FILE: Final = "varve-configs.json"
GROUP_COUNT_MAX: Final = 100_000
"""Groups with configs of their own."""
VALUE_LENGTH_MAX: Final = 4_096

Values = Mapping[str, str]
Changes = Mapping[str, str | None]
"""New values; None takes one away."""


class StoredConfigs:
    """The stored configs. `load` before use."""

    def __init__(self, fs: FileSystem, directories: Sequence[DirectoryHealth]) -> None:
        self._file = DirectoryDocument(fs, directories, CONFIGS_FILE)
        self._lock = threading.Lock()
        self.broker: Values = {}
        self.groups: Mapping[str, Values] = {}

    def load(self) -> None:
        """Raises Corrupt for a file that cannot be understood."""
        with self._lock:
            self.broker, self.groups = self._file.read_as(_decode)

    def of_group(self, group_id: str) -> Values:
        return self.groups.get(group_id, {})

    def alter_broker(self, changes: Changes) -> None:
        with self._lock:
            self._write(_changed(self.broker, changes), self.groups)

    def alter_group(self, group_id: str, changes: Changes) -> None:
        with self._lock:
            groups = {**self.groups, group_id: _changed(self.of_group(group_id), changes)}
            groups = {id: values for id, values in groups.items() if values}
            if len(groups) > GROUP_COUNT_MAX:
                raise InvalidRequest(
                    f"group {group_id:.260}: {GROUP_COUNT_MAX} groups have configs of their own, "
                    "which is the limit; delete those of a group, or set the broker's group.* "
                    "settings for all groups"
                )
            self._write(self.broker, groups)

    def _write(self, broker: Values, groups: Mapping[str, Values]) -> None:
        if (broker, groups) != (self.broker, self.groups):
            self._file.write({"broker": dict(broker), "groups": dict(groups)})
            self.broker, self.groups = broker, groups


def _changed(values: Values, changes: Changes) -> Values:
    merged = {**values, **changes}
    for name, value in merged.items():
        if value is not None and len(value) > VALUE_LENGTH_MAX:
            raise InvalidRequest(
                f"{name} has a value of {len(value)} characters; it may have {VALUE_LENGTH_MAX}"
            )
    return {name: value for name, value in merged.items() if value is not None}


def _decode(content: Mapping[str, Any]) -> tuple[Values, Mapping[str, Values]]:
    groups = {str(id): _decode_values(values) for id, values in content.get("groups", {}).items()}
    for id, values in groups.items():
        parse_settings(ConsumerGroupConfigs, values, f"group {id:.260}")
    return _decode_values(content.get("broker", {})), groups


def _decode_values(values: Mapping[str, Any]) -> Values:
    if not all(isinstance(value, str) for value in values.values()):
        raise TypeError("a value is not text")
    return dict(values)
