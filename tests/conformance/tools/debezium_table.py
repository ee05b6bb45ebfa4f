"""A table of a database as Debezium tells of it in Kafka, written by the tests themselves.

Layout     envelopes with keys as Debezium's JSON converter writes them, with their schemas or
           without; a delete is followed by a tombstone; transactions have a topic of their own.
           Keys keep their form, for the bytes of a key say which partition it belongs to.
Invariant  `state` is what the source has committed, and what was told of it.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from tests.support.shape_topic import Row, Rows

UNAVAILABLE: Final = "__debezium_unavailable_value"
_PATIENCE_SECONDS: Final = 30.0
_TYPES: Final = {int: "int64", str: "string", float: "double", bool: "boolean"}


class DebeziumTable:
    """Topic `<server>.public.<table>`, and `<server>.transaction`; `id` is the primary key."""

    def __init__(
        self, bootstrap: str, server: str, table: str, *, partition_count: int = 1, has_schema: bool
    ) -> None:
        self.topic = f"{server}.public.{table}"
        self.transaction_topic = f"{server}.transaction"
        self.state: dict[int, Row] = {}
        self.has_schema = has_schema
        self._keys_have_schema = has_schema
        self._server = server
        self._collection = f"public.{table}"
        self._transaction: str | None = None
        self._event_count = 0
        self._lsn = 1000
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 1, "log_level": 0})
        admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        wanted = [
            NewTopic(self.topic, partition_count, 1),
            NewTopic(self.transaction_topic, 1, 1),
        ]
        for made in admin.create_topics(wanted).values():
            made.result(_PATIENCE_SECONDS)

    # What the source does

    def begin(self, name: str) -> None:
        self._transaction, self._event_count = name, 0
        self._tell_transaction({"status": "BEGIN", "id": name, "event_count": None})

    def end(self) -> None:
        """The end comes behind the events, as the connector writes it."""
        held = [{"data_collection": self._collection, "event_count": self._event_count}]
        other = {"data_collection": "public.unrelated", "event_count": 3}
        self._tell_transaction(
            {
                "status": "END",
                "id": self._transaction,
                "event_count": self._event_count + 3,
                "data_collections": [*held, other],
            }
        )
        self._transaction = None

    def put(self, id: int, columns: Mapping[str, Any], operation: str | None = None) -> None:
        """A row as it is now: `r` while the source is copied, else `c` or `u`."""
        before = self.state.get(id)
        chosen = operation or ("c" if before is None else "u")
        self.state[id] = {"id": id, **columns}
        self._tell(id, before, self.state[id], chosen)

    def touch(self, id: int, unchanged: str, **columns: Any) -> None:
        """An update for which the source did not send a large column again."""
        before = self.state[id]
        self.state[id] = {**before, **columns}
        self._tell(id, None, {**self.state[id], unchanged: UNAVAILABLE}, "u")

    def delete(self, id: int) -> None:
        before = self.state.pop(id)
        self._tell(id, before, None, "d")
        self._send(self._key(id), None)

    def truncate(self) -> None:
        self.state.clear()
        self._event_count += 1
        self._send(None, self._value(self._envelope(None, None, "t"), {}))

    def change_schema(self) -> None:
        """As connectors tell of a changed table."""
        told = {
            "source": {"server": self._server},
            "databaseName": "db",
            "ddl": "ALTER TABLE accounts ADD COLUMN more text",
            "tableChanges": [],
        }
        self._send(json.dumps({"databaseName": "db"}).encode(), self._value(told, {}))

    def noise(self) -> None:
        """What says nothing about rows: a message of the source's log, a value of another kind."""
        self._send(
            json.dumps({"prefix": "app"}).encode(),
            json.dumps({"op": "m", "message": {"prefix": "app", "content": "aGk="}}).encode(),
        )
        self._send(self._key(1), b"no envelope")

    def flush(self) -> None:
        left = self._producer.flush(_PATIENCE_SECONDS)
        assert not left, f"{left} records are not acknowledged"

    def rows(self) -> Rows:
        """What a client of the whole table ends with."""
        return {f'"public"."{self.topic}"/"{id}"': dict(row) for id, row in self.state.items()}

    # How it is told

    def _tell(self, id: int, before: Row | None, after: Row | None, operation: str) -> None:
        self._event_count += 1
        row = after or before or {}
        self._send(self._key(id), self._value(self._envelope(before, after, operation), row))

    def _envelope(self, before: Row | None, after: Row | None, operation: str) -> dict[str, Any]:
        self._lsn += 8
        mark = None
        if self._transaction is not None:
            mark = {
                "id": self._transaction,
                "total_order": self._event_count,
                "data_collection_order": self._event_count,
            }
        source = {
            "version": "3.1.0.Final",
            "connector": "postgresql",
            "name": self._server,
            "db": "db",
            "schema": "public",
            "table": self._collection,
            "txId": self._lsn // 64,
            "lsn": self._lsn,
            "snapshot": "true" if operation == "r" else "false",
        }
        times = {"ts_ms": 1_700_000_000_000 + self._lsn, "ts_us": None, "ts_ns": None}
        return {
            "before": before,
            "after": after,
            "source": source,
            "transaction": mark,
            "op": operation,
            **times,
        }

    def _key(self, id: int) -> bytes:
        payload = {"id": id}
        schema = _schema_of(payload, f"{self.topic}.Key")
        told = {"schema": schema, "payload": payload} if self._keys_have_schema else payload
        return json.dumps(told).encode()

    def _value(self, envelope: Mapping[str, Any], row: Row) -> bytes:
        row_schema = _schema_of(row, f"{self.topic}.Value")
        fields = [{**row_schema, "optional": True, "field": part} for part in ("before", "after")]
        name = f"{self.topic}.Envelope"
        return self._wrapped(envelope, {"type": "struct", "fields": fields, "name": name})

    def _wrapped(self, payload: Any, schema: Mapping[str, Any]) -> bytes:
        told = {"schema": schema, "payload": payload} if self.has_schema else payload
        return json.dumps(told).encode()

    def _tell_transaction(self, event: Mapping[str, Any]) -> None:
        told = {**event, "ts_ms": 1_700_000_000_000}
        key = self._wrapped({"id": event["id"]}, _schema_of({"id": ""}, "TransactionMetadataKey"))
        value = self._wrapped(told, _schema_of({"status": "", "id": ""}, "TransactionMetadata"))
        self._producer.produce(self.transaction_topic, value, key)

    def _send(self, key: bytes | None, value: bytes | None) -> None:
        self._producer.produce(self.topic, value, key)
        self._producer.poll(0)


def _schema_of(row: Row, name: str) -> dict[str, Any]:
    fields = [
        {"type": _TYPES.get(type(value), "string"), "optional": column != "id", "field": column}
        for column, value in row.items()
    ]
    return {"type": "struct", "fields": fields, "optional": False, "name": name}
