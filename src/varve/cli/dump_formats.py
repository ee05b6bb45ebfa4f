"""Turns the entries of a dump into lines: those of Kafka's dump tool, or JSON objects.

Invariant  text lines are byte for byte those of Kafka's DumpLogSegments where it has one; what it
           calls a complaint comes at the end, on standard error, latest first, as there.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol, TextIO

from varve.cli.dump_entry import Entry
from varve.cli.record_decoders import Decoder, Undecodable, decode_text, decode_value

Fields = Mapping[str, object]


class DumpFormat(Protocol):
    """Where entries go; `finish` follows the last."""

    def begin(self, path: str) -> None: ...
    def write(self, path: str, entry: Entry) -> None: ...
    def finish(self) -> None: ...


class TextFormat:
    """Lines as Kafka's dump tool prints them."""

    def __init__(
        self,
        out: TextIO,
        errors: TextIO,
        *,
        key_decoder: Decoder = Decoder.UTF_8,
        value_decoder: Decoder = Decoder.UTF_8,
        skip_record_metadata: bool = False,
    ) -> None:
        self._out = out
        self._errors = errors
        self._key_decoder = key_decoder
        self._value_decoder = value_decoder
        self._skip_record_metadata = skip_record_metadata
        self._complaints: dict[tuple[str, str], list[str]] = {}

    def begin(self, path: str) -> None:
        self._out.write(f"Dumping {path}\n")

    def write(self, path: str, entry: Entry) -> None:
        kind, fields = entry
        if kind in _COMPLAINTS:
            _, template = _COMPLAINTS[kind]
            lines = self._complaints.setdefault((kind, path), [])
            lines.append(template.format_map(fields))
        elif kind == "problem":
            self._errors.write(f"{_problem_text(path, fields)}\n")
        elif kind == "record":
            self._out.write(f"{self._record_text(fields)}\n")
        else:
            self._out.write(f"{_TEXTS[kind](path, fields)}\n")

    def finish(self) -> None:
        """The complaints: they may be harmless, after compaction or appends of several batches."""
        for (kind, path), lines in self._complaints.items():
            heading, _ = _COMPLAINTS[kind]
            self._errors.write(heading.format(path=path) + "\n")
            self._errors.writelines(f"{line}\n" for line in reversed(lines))

    def _record_text(self, fields: Fields) -> str:
        parts = [] if self._skip_record_metadata else list(_record_parts(fields))
        parts += self._data_parts(fields)
        return f"| {' '.join(parts)}" if parts else ""

    def _data_parts(self, fields: Fields) -> Iterator[str]:
        key, value = fields.get("key"), fields.get("value")
        if isinstance(key, bytes):
            yield f"key: {decode_text(self._key_decoder, key)}"
        if isinstance(value, bytes):
            yield f"payload: {decode_text(self._value_decoder, value)}"


_COMPLAINTS = {
    "indexMismatch": (
        "Mismatches in :{path}",
        "  Index offset: {indexOffset}, log offset: {logOffset}",
    ),
    "timestampMismatch": (
        "Found timestamp mismatch in :{path}",
        "  Index timestamp: {indexTimestamp}, log timestamp: {logTimestamp}",
    ),
    "timestampOutOfOrder": (
        "Found out of order timestamp in :{path}",
        "  Index timestamp: {indexTimestamp}, Previously indexed timestamp: {previousTimestamp}",
    ),
    "offsetNotFound": (
        "The following indexed offsets are not found in the log.",
        "Indexed offset: {indexedOffset}, found log offset: {logOffset}",
    ),
    "nonConsecutive": (
        "Non-consecutive offsets in {path}",
        "  {offset} is followed by {nextOffset}",
    ),
}


def _problem_text(path: str, fields: Fields) -> str:
    message = str(fields["message"])
    position = fields["position"]
    place = "" if position is None else f"position {position}: "
    return f"{path}: {place}{message.removeprefix(f'{path}: ')}"


def _record_parts(fields: Fields) -> Iterator[str]:
    yield (
        f"offset: {fields['offset']} {fields['timestampType']}: {fields['timestamp']}"
        f" keySize: {fields['keySize']} valueSize: {fields['valueSize']}"
        f" sequence: {fields['sequence']} headerKeys: [{_joined(fields['headerKeys'])}]"
    )
    if fields.get("coordinatorEpoch") is not None:
        yield f"endTxnMarker: {fields['controlType']}"
        yield f"coordinatorEpoch: {fields['coordinatorEpoch']}"
    elif "controlType" in fields:
        yield f"controlType: {fields['controlType']}({fields['controlTypeId']})"


def _joined(names: object) -> str:
    assert isinstance(names, list)
    return ",".join(names)


def _optional(value: object) -> str:
    return "OptionalLong.empty" if value is None else f"OptionalLong[{value}]"


def _truth(value: object) -> str:
    return "true" if value else "false"


def _batch_text(path: str, f: Fields) -> str:
    return (
        f"baseOffset: {f['baseOffset']} lastOffset: {f['lastOffset']} count: {f['count']}"
        f" baseSequence: {f['baseSequence']} lastSequence: {f['lastSequence']}"
        f" producerId: {f['producerId']} producerEpoch: {f['producerEpoch']}"
        f" partitionLeaderEpoch: {f['partitionLeaderEpoch']}"
        f" isTransactional: {_truth(f['isTransactional'])} isControl: {_truth(f['isControl'])}"
        f" deleteHorizonMs: {_optional(f['deleteHorizonMs'])} position: {f['position']}"
        f" {f['timestampType']}: {f['maxTimestamp']} size: {f['size']} magic: {f['magic']}"
        f" compresscodec: {f['compression']} crc: {f['crc']} isvalid: {_truth(f['isValid'])}"
    )


def _producer_text(path: str, f: Fields) -> str:
    text = (
        f"producerId: {f['producerId']} producerEpoch: {f['producerEpoch']}"
        f" coordinatorEpoch: {f['coordinatorEpoch']}"
        f" currentTxnFirstOffset: {_optional(f['currentTxnFirstOffset'])}"
        f" lastTimestamp: {f['lastTimestamp']} "
    )
    if "lastOffset" not in f:
        return text
    return (
        f"{text}firstSequence: {f['firstSequence']} lastSequence: {f['lastSequence']}"
        f" lastOffset: {f['lastOffset']} offsetDelta: {f['offsetDelta']}"
        f" timestamp: {f['timestamp']}"
    )


def _plain_text(path: str, fields: Fields) -> str:
    return " ".join(f"{name}: {value}" for name, value in fields.items() if value is not None)


def _plain_truth_text(path: str, fields: Fields) -> str:
    shown = {n: _truth(v) if isinstance(v, bool) else v for n, v in fields.items()}
    return _plain_text(path, shown)


def _file_name(path: str) -> str:
    return path.rpartition("/")[2]


_TEXTS: dict[str, Callable[[str, Fields], str]] = {
    "logStart": lambda path, f: f"Log starting offset: {f['offset']}",
    "snapshotEnd": lambda path, f: f"Snapshot end offset: {f['offset']}, epoch: {f['epoch']}",
    "bootstrapSnapshot": lambda path, f: "KRaft bootstrap snapshot",
    "batch": _batch_text,
    "trailingBytes": lambda path, f: (
        f"Found {f['size']} invalid bytes at the end of {_file_name(path)}"
    ),
    "offsetIndexEntry": _plain_text,
    "timeIndexEntry": _plain_text,
    "abortedTransaction": _plain_text,
    "emptyIndex": lambda path, f: f"{path} is empty.",
    "saneIndex": lambda path, f: f"{path} passed sanity check.",
    "keyIndex": _plain_text,
    "keyEntry": _plain_truth_text,
    "keyBatch": _plain_truth_text,
    "keyMark": _plain_text,
    "staleKeyIndex": lambda path, f: f"{path} is not of the data file beside it.",
    "producer": _producer_text,
    "leaderEpoch": _plain_text,
    "checkpoint": _plain_text,
    "partitionMetadata": _plain_text,
    "directoryMetadata": _plain_text,
    "topic": _plain_text,
    "appendTimes": _plain_text,
    "cleanShutdown": lambda path, f: f"brokerEpoch: {_optional(f['brokerEpoch'])}",
}


class JsonFormat:
    """One object per line on standard output, complaints and problems in their place."""

    def __init__(
        self,
        out: TextIO,
        *,
        key_decoder: Decoder = Decoder.UTF_8,
        value_decoder: Decoder = Decoder.UTF_8,
    ) -> None:
        self._out = out
        self._key_decoder = key_decoder
        self._value_decoder = value_decoder

    def begin(self, path: str) -> None:
        self.write(path, Entry("file", {}))

    def write(self, path: str, entry: Entry) -> None:
        document = {"kind": entry.kind, "file": path, **entry.fields}
        if "value" in document:
            document["key"] = _decoded(self._key_decoder, document["key"])
            document["value"] = _decoded(self._value_decoder, document["value"])
            document["headers"] = self._headers(document["headers"])
        text = json.dumps(document, ensure_ascii=False, default=_undecodable)
        self._out.write(f"{text}\n")

    def finish(self) -> None:
        """Everything has been written."""

    def _headers(self, headers: object) -> list[list[object]]:
        assert isinstance(headers, list)
        return [[name, _decoded(Decoder.UTF_8, value)] for name, value in headers]


def _decoded(decoder: Decoder, data: object) -> object:
    return decode_value(decoder, data) if isinstance(data, bytes) else None


def _undecodable(value: object) -> dict[str, str]:
    assert isinstance(value, Undecodable)
    return {"undecodable": value.decoder.value, "hex": value.data.hex()}
