"""A topic that tests write, and the rows that its shapes must come to.

Invariant  `state` is what the broker has acknowledged as the latest value of each key.
"""

import json
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Final, Self

from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

Row = dict[str, Any]
Rows = dict[str, Row]
"""Rows as a client has them: by the key of their messages."""

_PATIENCE_SECONDS: Final = 120.0
_BATCH_RECORDS: Final = 100
"""So few that a batch fits into a small segment."""


class ShapeTopic:
    """Values are JSON objects by a key of text; a delete is a tombstone."""

    def __init__(
        self,
        bootstrap: str,
        name: str,
        *,
        partition_count: int = 1,
        configs: Mapping[str, str] | None = None,
        login: Mapping[str, Any] | None = None,
    ) -> None:
        """`login` has further settings of the client."""
        self.name = name
        self.state: dict[str, Row] = {}
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                **(login or {}),
                "enable.idempotence": True,
                "linger.ms": 2,
                "batch.num.messages": _BATCH_RECORDS,
                "log_level": 0,
            }
        )
        self._failures: list[str] = []
        self._admin = AdminClient({"bootstrap.servers": bootstrap, **(login or {}), "log_level": 0})
        created = self._admin.create_topics(
            [NewTopic(name, partition_count, 1, config=dict(configs or {}))]
        )
        created[name].result(_PATIENCE_SECONDS)

    def put(self, key: str, value: Mapping[str, Any]) -> None:
        self._send(key, json.dumps(value).encode())
        self.state[key] = dict(value)

    def delete(self, key: str) -> None:
        self._send(key, None)
        self.state.pop(key, None)

    def _send(self, key: str, value: bytes | None) -> None:
        self._producer.produce(self.name, key=key, value=value, on_delivery=self._note)
        self._producer.poll(0)

    def _note(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._failures.append(f"{message.key()!r}: {error}")

    def flush(self) -> None:
        """Everything so far is acknowledged; raises where something was not."""
        left = self._producer.flush(_PATIENCE_SECONDS)
        assert not left, f"{left} records are not acknowledged"
        assert not self._failures, self._failures[0]

    def remove(self) -> None:
        """Deletes the topic; the rows are those of a topic that is no more."""
        self._admin.delete_topics([self.name])[self.name].result(_PATIENCE_SECONDS)

    def rows(self, is_wanted: Callable[[Row], bool] = lambda row: True) -> Rows:
        """What a client of a shape with such a filter ends with."""
        made = ((key, {"key": key, **value}) for key, value in self.state.items())
        return {self.message_key(key): row for key, row in made if is_wanted(row)}

    def message_key(self, key: str) -> str:
        return f'"public"."{self.name}"/"{key.replace("/", "//")}"'

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._producer.flush(_PATIENCE_SECONDS)
