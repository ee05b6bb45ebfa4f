"""Compiles declared messages to Python functions: a decoder and an encoder per version.

The source of a function is generated for its version, so that nothing is decided per message: runs
of fixed-width fields are one call of `struct`, fields that a version lacks cost nothing.

Invariant  reading stays within the bytes it is given and allocates no more than they justify: a
           length is compared with what is left before it is used, and the elements of arrays and
           tagged fields are counted before they are made, because an element of two bytes becomes
           an object of a hundred. Unknown tags are skipped. What breaks the format raises
           MalformedMessage.
Threads    any; a function may be compiled twice, and the last one stays.
"""

from collections.abc import Callable
from struct import Struct
from struct import error as StructError  # noqa: N812  # a class, whatever its name
from typing import Any
from uuid import UUID

from varve.foundation.errors import MalformedMessage
from varve.wire.schema import FieldType, Kind, WireField, wire_fields

Decoder = Callable[[memoryview, int, list[int]], tuple[Any, int]]
"""Reads a struct at a position; returns it and where it ends. The list holds the count of array
elements and tagged fields that the message may still have."""
Encoder = Callable[[bytearray, Any], None]
"""Appends a struct."""


def read_uvarint(data: memoryview, at: int) -> tuple[int, int]:
    """An unsigned number of up to five bytes, and where it ends."""
    byte = data[at]
    if byte < 0x80:
        return byte, at + 1
    value, shift = byte & 0x7F, 7
    for index in range(at + 1, at + 5):
        byte = data[index]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value > 0xFFFF_FFFF:
                break
            return value, index + 1
        shift += 7
    raise MalformedMessage(f"byte {at}: a variable-length number exceeds 32 bits")


def write_uvarint(out: bytearray, value: int) -> None:
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def check_length(data: memoryview, at: int, length: int) -> None:
    """Raises MalformedMessage unless so many bytes, or elements, can be left."""
    if length < 0 or length > len(data) - at:
        raise MalformedMessage(
            f"byte {at}: a length of {length} where {len(data) - at} bytes are left"
        )


def refuse_count() -> None:
    raise MalformedMessage("it has more array elements and tagged fields than are allowed")


def refuse_null(at: int, name: str) -> None:
    raise MalformedMessage(f"byte {at}: {name} is null and must not be")


def read_text(data: memoryview, at: int, end: int) -> str:
    try:
        return str(data[at:end], "utf-8")
    except UnicodeDecodeError as error:
        raise MalformedMessage(f"byte {at}: a text is not UTF-8: {error.reason}") from error


class _Source:
    """The source of one function, and the values that it refers to."""

    def __init__(self, head: str) -> None:
        self.lines = [head]
        self.names: dict[str, Any] = {
            "read_uvarint": read_uvarint,
            "write_uvarint": write_uvarint,
            "check_length": check_length,
            "refuse_count": refuse_count,
            "refuse_null": refuse_null,
            "read_text": read_text,
            "UUID": UUID,
            "MalformedMessage": MalformedMessage,
        }
        self._depth = 1
        self._count = 0

    def add(self, text: str) -> None:
        self.lines.append("    " * self._depth + text)

    def into(self) -> None:
        self._depth += 1

    def out(self) -> None:
        self._depth -= 1

    def name(self, value: object, hint: str = "v") -> str:
        self._count += 1
        name = f"_{hint}{self._count}"
        self.names[name] = value
        return name

    def local(self) -> str:
        self._count += 1
        return f"x{self._count}"

    def make(self, function: str) -> Any:
        exec(compile("\n".join(self.lines), f"<{function}>", "exec"), self.names)
        return self.names[function]


class Compiler:
    """Functions of structs by version, compiled at first use."""

    def __init__(self) -> None:
        self._decoders: dict[tuple[type, int, bool], Decoder] = {}
        self._encoders: dict[tuple[type, int, bool], Encoder] = {}

    def decoder(self, cls: type, version: int, is_flexible: bool) -> Decoder:
        key = (cls, version, is_flexible)
        decoder = self._decoders.get(key)
        if decoder is None:
            decoder = self._decoders[key] = _DecoderSource(self, cls, version, is_flexible).make()
        return decoder

    def encoder(self, cls: type, version: int, is_flexible: bool) -> Encoder:
        key = (cls, version, is_flexible)
        encoder = self._encoders.get(key)
        if encoder is None:
            encoder = self._encoders[key] = _EncoderSource(self, cls, version, is_flexible).make()
        return encoder


def _split(
    cls: type, version: int
) -> tuple[list[tuple[str, WireField, Any]], list[tuple[str, WireField, Any]]]:
    """The plain and the tagged fields of a version."""
    plain, tagged = [], []
    for name, place, default in wire_fields(cls):
        if version in place.tagged:
            tagged.append((name, place, default))
        elif version in place.versions:
            plain.append((name, place, default))
    return plain, tagged


class _DecoderSource:
    def __init__(self, compiler: Compiler, cls: type, version: int, is_flexible: bool) -> None:
        self._compiler = compiler
        self._cls = cls
        self._version = version
        self._is_flexible = is_flexible
        self._source = _Source("def decode(data, at, left):")

    def make(self) -> Decoder:
        source = self._source
        plain, tagged = _split(self._cls, self._version)
        values: dict[str, str] = {}
        self._read_plain(plain, values)
        for name, _, default in tagged:
            values[name] = source.local()
            source.add(f"{values[name]} = {self._default(default)}")
        if self._is_flexible:
            self._read_tags(tagged, values)
        arguments = [
            values[name] if name in values else self._default(default)
            for name, _, default in wire_fields(self._cls)
        ]
        source.add(f"return {source.name(self._cls, 'cls')}({', '.join(arguments)}), at")
        decode: Decoder = source.make("decode")
        return decode

    def _default(self, default: Any) -> str:
        if default is list:
            return "[]"
        if isinstance(default, type):
            return f"{self._source.name(default, 'cls')}()"
        return self._source.name(default, "default")

    def _read_plain(self, plain: list[tuple[str, WireField, Any]], values: dict[str, str]) -> None:
        run: list[tuple[str, Kind]] = []
        for name, place, _ in plain:
            if place.type.kind.is_fixed:
                values[name] = self._source.local()
                run.append((values[name], place.type.kind))
                continue
            self._read_run(run)
            run = []
            is_nullable = self._version in place.nullable
            values[name] = self._read(place.type, name, is_nullable)
        self._read_run(run)

    def _read_run(self, run: list[tuple[str, Kind]]) -> None:
        if not run:
            return
        packed = Struct(">" + "".join(kind.value for _, kind in run))
        targets = ", ".join(name for name, _ in run)
        unpack = self._source.name(packed.unpack_from, "unpack")
        self._source.add(f"{targets}, = {unpack}(data, at)")
        self._source.add(f"at += {packed.size}")

    def _read(self, type: FieldType, name: str, is_nullable: bool) -> str:
        """Adds lines that read a value; returns its name."""
        source, value = self._source, self._source.local()
        kind = type.kind
        if kind.is_fixed:
            self._read_run([(value, kind)])
        elif kind is Kind.UUID:
            source.add("check_length(data, at, 16)")
            source.add(f"{value} = UUID(bytes=bytes(data[at:at + 16]))")
            source.add("at += 16")
        elif kind is Kind.STRUCT:
            self._read_struct(type, value, is_nullable)
        elif kind is Kind.ARRAY:
            self._read_array(type, name, value, is_nullable)
        else:
            self._read_sized(kind, name, value, is_nullable)
        return value

    def _read_struct(self, type: FieldType, value: str, is_nullable: bool) -> None:
        assert type.struct is not None
        source = self._source
        inner = self._compiler.decoder(type.struct, self._version, self._is_flexible)
        call = f"{value}, at = {source.name(inner, 'struct')}(data, at, left)"
        if not is_nullable:
            source.add(call)
            return
        mark = source.local()
        self._read_run([(mark, Kind.INT8)])
        source.add(f"{value} = None")
        source.add(f"if {mark} >= 0:")
        source.into()
        source.add(call)
        source.out()

    def _read_length(self, kind: Kind) -> str:
        """A length, -1 for null."""
        source, length = self._source, self._source.local()
        if self._is_flexible:
            # Nearly all lengths have one byte: those are read without a call.
            source.add(f"{length} = data[at] - 1")
            source.add(f"if {length} < 0x7F: at += 1")
            source.add("else:")
            source.into()
            source.add(f"{length}, at = read_uvarint(data, at)")
            source.add(f"{length} -= 1")
            source.out()
        else:
            self._read_run([(length, Kind.INT16 if kind is Kind.STRING else Kind.INT32)])
        return length

    def _read_sized(self, kind: Kind, name: str, value: str, is_nullable: bool) -> None:
        source = self._source
        length = self._read_length(kind)
        source.add(f"if {length} < 0:")
        source.into()
        if not is_nullable:
            source.add(f"refuse_null(at, {name!r})")
        source.add(f"{value} = None")
        source.out()
        source.add("else:")
        source.into()
        end = source.local()
        source.add(f"{end} = at + {length}")
        source.add(f"if {end} > len(data): check_length(data, at, {length})")
        expression = {
            Kind.STRING: f"read_text(data, at, {end})",
            Kind.BYTES: f"bytes(data[at:{end}])",
            Kind.RECORDS: f"data[at:{end}]",
        }[kind]
        source.add(f"{value} = {expression}")
        source.add(f"at = {end}")
        source.out()

    def _read_array(self, type: FieldType, name: str, value: str, is_nullable: bool) -> None:
        assert type.element is not None
        source = self._source
        count = self._read_length(Kind.ARRAY)
        source.add(f"if {count} < 0:")
        source.into()
        if not is_nullable:
            source.add(f"refuse_null(at, {name!r})")
        source.add(f"{value} = None")
        source.out()
        source.add("else:")
        source.into()
        # Each element has a byte at least.
        source.add(f"check_length(data, at, {count})")
        self._count(count)
        if type.element.kind.is_fixed:
            item = Struct(">" + type.element.kind.value)
            source.add(f"check_length(data, at, {count} * {item.size})")
            unpack = source.name(item.iter_unpack, "unpack")
            source.add(
                f"{value} = [item for item, in {unpack}(data[at:at + {count} * {item.size}])]"
            )
            source.add(f"at += {count} * {item.size}")
        else:
            source.add(f"{value} = []")
            source.add(f"for _ in range({count}):")
            source.into()
            element = self._read(type.element, name, False)
            source.add(f"{value}.append({element})")
            source.out()
        source.out()

    def _count(self, count: str) -> None:
        """Adds lines that check the count of elements against what the message may still have."""
        self._source.add(f"left[0] -= {count}")
        self._source.add("if left[0] < 0: refuse_count()")

    def _read_tags(self, tagged: list[tuple[str, WireField, Any]], values: dict[str, str]) -> None:
        source = self._source
        count, tag, size, end = (source.local() for _ in range(4))
        source.add("if data[at] == 0: at += 1")
        source.add("else:")
        source.into()
        source.add(f"{count}, at = read_uvarint(data, at)")
        self._count(count)
        source.add(f"for _ in range({count}):")
        source.into()
        source.add(f"{tag}, at = read_uvarint(data, at)")
        source.add(f"{size}, at = read_uvarint(data, at)")
        source.add(f"check_length(data, at, {size})")
        source.add(f"{end} = at + {size}")
        for name, place, _ in tagged:
            source.add(f"if {tag} == {place.tag}:")
            source.into()
            is_nullable = self._version in place.nullable
            source.add(f"{values[name]} = {self._read(place.type, name, is_nullable)}")
            source.out()
        source.add(f"at = {end}")
        source.out()
        source.out()


class _EncoderSource:
    def __init__(self, compiler: Compiler, cls: type, version: int, is_flexible: bool) -> None:
        self._compiler = compiler
        self._cls = cls
        self._version = version
        self._is_flexible = is_flexible
        self._source = _Source("def encode(out, message):")

    def make(self) -> Encoder:
        source = self._source
        plain, tagged = _split(self._cls, self._version)
        run: list[tuple[str, Kind]] = []
        for name, place, _ in plain:
            if place.type.kind.is_fixed:
                run.append((f"message.{name}", place.type.kind))
                continue
            self._write_run(run)
            run = []
            self._write(place.type, f"message.{name}", self._version in place.nullable, "out")
        self._write_run(run)
        if self._is_flexible:
            self._write_tags(tagged)
        source.add("return")
        encode: Encoder = source.make("encode")
        return encode

    def _write_run(self, run: list[tuple[str, Kind]], out: str = "out") -> None:
        if not run:
            return
        pack = self._source.name(Struct(">" + "".join(kind.value for _, kind in run)).pack, "pack")
        self._source.add(f"{out} += {pack}({', '.join(value for value, _ in run)})")

    def _write(self, type: FieldType, value: str, is_nullable: bool, out: str) -> None:
        source, kind = self._source, type.kind
        if kind.is_fixed:
            self._write_run([(value, kind)], out)
        elif kind is Kind.UUID:
            source.add(f"{out} += {value}.bytes")
        elif kind is Kind.STRUCT:
            self._write_struct(type, value, is_nullable, out)
        elif kind is Kind.ARRAY:
            self._write_array(type, value, is_nullable, out)
        else:
            self._write_sized(kind, value, is_nullable, out)

    def _write_struct(self, type: FieldType, value: str, is_nullable: bool, out: str) -> None:
        assert type.struct is not None
        source = self._source
        inner = self._compiler.encoder(type.struct, self._version, self._is_flexible)
        call = f"{source.name(inner, 'struct')}({out}, {value})"
        if not is_nullable:
            source.add(call)
            return
        source.add(f"if {value} is None: {out}.append(0xFF)")
        source.add("else:")
        source.into()
        source.add(f"{out}.append(1)")
        source.add(call)
        source.out()

    def _write_length(self, kind: Kind, length: str, out: str) -> None:
        if self._is_flexible:
            size = self._source.local()
            self._source.add(f"{size} = {length} + 1")
            self._source.add(f"if {size} < 0x80: {out}.append({size})")
            self._source.add(f"else: write_uvarint({out}, {size})")
        else:
            self._write_run([(length, Kind.INT16 if kind is Kind.STRING else Kind.INT32)], out)

    def _write_null(self, kind: Kind, value: str, is_nullable: bool, out: str) -> None:
        """Writes null, and starts the branch of other values."""
        source = self._source
        source.add(f"if {value} is None:")
        source.into()
        if is_nullable:
            self._write_length(kind, "-1", out)
        else:
            message = f"{value.removeprefix('message.')} of {self._cls.__name__} is None"
            source.add(f"raise ValueError({message!r})")
        source.out()
        source.add("else:")
        source.into()

    def _write_sized(self, kind: Kind, value: str, is_nullable: bool, out: str) -> None:
        source = self._source
        self._write_null(kind, value, is_nullable, out)
        data = value
        if kind is Kind.STRING:
            data = source.local()
            source.add(f"{data} = {value}.encode()")
        self._write_length(kind, f"len({data})", out)
        source.add(f"{out} += {data}")
        source.out()

    def _write_array(self, type: FieldType, value: str, is_nullable: bool, out: str) -> None:
        assert type.element is not None
        source = self._source
        self._write_null(Kind.ARRAY, value, is_nullable, out)
        self._write_length(Kind.ARRAY, f"len({value})", out)
        item = source.local()
        source.add(f"for {item} in {value}:")
        source.into()
        self._write(type.element, item, False, out)
        source.out()
        source.out()

    def _write_tags(self, tagged: list[tuple[str, WireField, Any]]) -> None:
        """Writes tagged fields whose value is not the default."""
        source = self._source
        if not tagged:
            source.add("out.append(0)")
            return
        parts = source.local()
        source.add(f"{parts} = []")
        for name, place, default in sorted(tagged, key=lambda field: field[1].tag or 0):
            source.add(f"if {self._differs(name, default)}:")
            source.into()
            part = source.local()
            source.add(f"{part} = bytearray()")
            self._write(place.type, f"message.{name}", self._version in place.nullable, part)
            source.add(f"{parts}.append(({place.tag}, {part}))")
            source.out()
        tag, part = source.local(), source.local()
        source.add(f"write_uvarint(out, len({parts}))")
        source.add(f"for {tag}, {part} in {parts}:")
        source.into()
        source.add(f"write_uvarint(out, {tag})")
        source.add(f"write_uvarint(out, len({part}))")
        source.add(f"out += {part}")
        source.out()

    def _differs(self, name: str, default: Any) -> str:
        if default is list:
            return f"message.{name} or message.{name} is None"
        if isinstance(default, type):
            return f"message.{name} != {self._source.name(default(), 'default')}"
        return f"message.{name} != {self._source.name(default, 'default')}"


__all__ = ["Compiler", "Decoder", "Encoder", "StructError", "read_uvarint", "write_uvarint"]
