"""The lines of a dump: those of Kafka's DumpLogSegments, or JSON objects.

Invariant  text lines are byte for byte Kafka's where Kafka has one; mismatches come at the end, on
           standard error, latest first, as there. Every key and value has a form under every
           decoder: bytes that do not fit are shown in hex and marked.
"""

import base64
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, TextIO

from varve.cleaning.removals.removal_log import REMOVAL_LOG_FILE
from varve.cli.dump.records import DumpEntry

Fields = Mapping[str, object]


class DumpDecoder(StrEnum):
    """How bytes of keys or values are decoded."""

    UTF_8 = "utf-8"
    HEX = "hex"
    BASE64 = "base64"
    JSON = "json"
    INT = "int"
    LONG = "long"


@dataclass(frozen=True, slots=True)
class Undecodable:
    """Bytes that the decoder cannot decode."""

    decoder: DumpDecoder
    data: bytes

    def __str__(self) -> str:
        return f"<not {self.decoder}: {self.data.hex()}>"


def decode_value(decoder: DumpDecoder, data: bytes) -> object:
    """The value for JSON: text, a number, a document, or Undecodable."""
    try:
        return _DECODERS[decoder](data)
    except (ValueError, RecursionError):
        return Undecodable(decoder, data)


def decode_text(decoder: DumpDecoder, data: bytes) -> str:
    """The value on one line of text."""
    value = decode_value(decoder, data)
    if decoder is DumpDecoder.JSON and not isinstance(value, Undecodable):
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return str(value)


def _decode_integer(size: int) -> Callable[[bytes], int]:
    def decode(data: bytes) -> int:
        if len(data) != size:
            raise ValueError(f"{len(data)} bytes instead of {size}")
        return int.from_bytes(data, "big", signed=True)

    return decode


_DECODERS: Final[dict[DumpDecoder, Callable[[bytes], object]]] = {
    DumpDecoder.UTF_8: lambda data: data.decode(errors="replace"),
    DumpDecoder.HEX: bytes.hex,
    DumpDecoder.BASE64: lambda data: base64.b64encode(data).decode(),
    DumpDecoder.JSON: json.loads,
    DumpDecoder.INT: _decode_integer(4),
    DumpDecoder.LONG: _decode_integer(8),
}


@dataclass(slots=True)
class DumpFormat:
    """Where entries are written; `finish` follows the last one."""

    out: TextIO
    errors: TextIO
    key_decoder: DumpDecoder = DumpDecoder.UTF_8
    value_decoder: DumpDecoder = DumpDecoder.UTF_8

    def begin(self, path: str) -> None:
        """A file follows."""
        raise NotImplementedError

    def write(self, path: str, entry: DumpEntry) -> None:
        raise NotImplementedError

    def skip(self, path: str) -> None:
        """A file whose name is not known here."""
        if _file_name(path) == REMOVAL_LOG_FILE:
            self.errors.write(f"Skipping {path}: evidence of removals, `varve audit` reads it\n")
        else:
            self.errors.write(f"Ignoring unknown file {path}\n")

    def finish(self) -> None:
        """No entry follows."""


@dataclass(slots=True)
class TextFormat(DumpFormat):
    """Lines as Kafka's tool prints them."""

    skip_record_metadata: bool = False
    _mismatches: dict[tuple[str, str], list[str]] = field(default_factory=dict, init=False)

    def begin(self, path: str) -> None:
        self.out.write(f"Dumping {path}\n")

    def write(self, path: str, entry: DumpEntry) -> None:
        type, fields = entry
        if type in _MISMATCHES:
            _, template = _MISMATCHES[type]
            lines = self._mismatches.setdefault((type, path), [])
            lines.append(template.format_map(fields))
        elif type == "problem":
            self.errors.write(f"{_problem_text(path, fields)}\n")
        elif type == "record":
            self.out.write(f"{self._record_text(fields)}\n")
        else:
            self.out.write(f"{_TEXTS.get(type, _plain_text)(path, fields)}\n")

    def finish(self) -> None:
        """Mismatches: harmless after compaction or appends of several batches."""
        for (type, path), lines in self._mismatches.items():
            heading, _ = _MISMATCHES[type]
            self.errors.write(heading.format(path=path) + "\n")
            self.errors.writelines(f"{line}\n" for line in reversed(lines))

    def _record_text(self, fields: Fields) -> str:
        parts = [] if self.skip_record_metadata else list(_record_parts(fields))
        for name, label, decoder in (
            ("key", "key", self.key_decoder),
            ("value", "payload", self.value_decoder),
        ):
            data = fields.get(name)
            if isinstance(data, bytes):
                parts.append(f"{label}: {decode_text(decoder, data)}")
        return f"| {' '.join(parts)}" if parts else ""


class JsonFormat(DumpFormat):
    """One object per line on standard output, with mismatches and problems in their place."""

    __slots__ = ()

    def begin(self, path: str) -> None:
        self.write(path, DumpEntry("file", {}))

    def write(self, path: str, entry: DumpEntry) -> None:
        document = {"type": entry.type, "file": path, **entry.fields}
        if "value" in document:
            headers = document["headers"]
            assert isinstance(headers, list)
            document["key"] = _decoded(self.key_decoder, document["key"])
            document["value"] = _decoded(self.value_decoder, document["value"])
            document["headers"] = [
                [name, _decoded(DumpDecoder.UTF_8, value)] for name, value in headers
            ]
        text = json.dumps(document, ensure_ascii=False, default=_encode_undecodable)
        self.out.write(f"{text}\n")


def _decoded(decoder: DumpDecoder, data: object) -> object:
    return decode_value(decoder, data) if isinstance(data, bytes) else None


def _encode_undecodable(value: object) -> dict[str, str]:
    assert isinstance(value, Undecodable)
    return {"undecodable": value.decoder.value, "hex": value.data.hex()}


# Texts of Kafka's tool


_MISMATCHES: Final = {
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
    where = "" if position is None else f"position {position}: "
    return f"{path}: {where}{message.removeprefix(f'{path}: ')}"


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
    shown = {n: _truth(v) if isinstance(v, bool) else v for n, v in fields.items()}
    return " ".join(f"{name}: {value}" for name, value in shown.items() if value is not None)


def _file_name(path: str) -> str:
    return path.rpartition("/")[2]


_TEXTS: Final[dict[str, Callable[[str, Fields], str]]] = {
    "logStart": lambda path, f: f"Log starting offset: {f['offset']}",
    "snapshotEnd": lambda path, f: f"Snapshot end offset: {f['offset']}, epoch: {f['epoch']}",
    "bootstrapSnapshot": lambda path, f: "KRaft bootstrap snapshot",
    "batch": _batch_text,
    "trailingBytes": lambda path, f: (
        f"Found {f['size']} invalid bytes at the end of {_file_name(path)}"
    ),
    "emptyIndex": lambda path, f: f"{path} is empty.",
    "saneIndex": lambda path, f: f"{path} passed sanity check.",
    "staleKeyIndex": lambda path, f: f"{path} is not of the data file beside it.",
    "producer": _producer_text,
    "cleanShutdown": lambda path, f: f"brokerEpoch: {_optional(f['brokerEpoch'])}",
}
"""The lines of entries that are more than a list of their fields."""
