"""Compiles declared messages to Python functions: a decoder and an encoder per version.

The source of a function is generated for its version, so that nothing is decided per message: runs
of fixed-width fields are one call of `struct`, fields that a version lacks cost nothing.

Invariant  a decoder reads only the bytes it is given, and allocates no more than they justify: a
           length is compared with the remaining bytes before it is used, and the elements of
           arrays and tagged fields are counted before they are created, because an element of two
           bytes becomes an object of a hundred. Unknown tags are skipped. Malformed bytes raise
           MalformedMessage.
Threads    any; a function may be compiled twice.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from struct import Struct
from struct import error as StructError  # noqa: N812  # a class, whatever its name
from typing import Any, Final
from uuid import UUID

from varve.foundation.errors import MalformedMessage
from varve.wire.schema import FieldType, Kind, WireField, wire_fields

Buffer = bytes | bytearray | memoryview

_PART_BYTES: Final = 4 << 10
"""Smaller records are copied: a buffer of their own would cost more."""

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


class PartsBuffer(bytearray):
    """A message while it is encoded; large records are not copied into it.

    `cuts` holds them with the positions that they belong to.
    """

    __slots__ = ("cuts",)

    def __init__(self, start: Buffer = b"") -> None:
        super().__init__(start)
        self.cuts: list[tuple[int, memoryview]] = []

    def parts(self) -> list[Buffer]:
        """The message as buffers to be written one by one."""
        if not self.cuts:
            return [self]
        parts: list[Buffer] = []
        view, start = memoryview(self), 0
        for position, records in self.cuts:
            parts += (view[start:position], records)
            start = position
        return [*parts, view[start:]] if start < len(self) else parts


def write_records(out: bytearray, records: memoryview) -> None:
    if type(out) is PartsBuffer and len(records) >= _PART_BYTES:
        out.cuts.append((len(out), records))
    else:
        out += records


def check_length(data: memoryview, at: int, length: int) -> None:
    """Raises MalformedMessage unless this many bytes, or elements, can be left."""
    if length < 0 or length > len(data) - at:
        raise MalformedMessage(
            f"byte {at}: a length of {length} where {len(data) - at} bytes are left"
        )


def refuse_count() -> None:
    raise MalformedMessage("it has more array elements and tagged fields than are allowed")


def refuse_tag(at: int, tag: int, last: int) -> None:
    raise MalformedMessage(f"byte {at}: tag {tag} after tag {last}; tags must ascend")


def refuse_tag_size(at: int, name: str, end: int) -> None:
    raise MalformedMessage(f"byte {at}: {name} ends {end - at} bytes before the size of its tag")


def refuse_null(at: int, name: str) -> None:
    raise MalformedMessage(f"byte {at}: {name} is null and must not be")


def read_text(data: memoryview, at: int, end: int) -> str:
    try:
        return str(data[at:end], "utf-8")
    except UnicodeDecodeError as error:
        raise MalformedMessage(f"byte {at}: a text is not UTF-8: {error.reason}") from error


@cache
def decoder(cls: type, version: int, is_flexible: bool) -> Decoder:
    """The function that reads a struct of a version; compiled at first use."""
    return _DecoderSource(cls, version, is_flexible).compile()


@cache
def encoder(cls: type, version: int, is_flexible: bool) -> Encoder:
    """The function that writes a struct of a version; compiled at first use."""
    return _EncoderSource(cls, version, is_flexible).compile()


class _FunctionSource:
    """The source of the function of a struct, and the values that it refers to."""

    def __init__(self, signature: str, cls: type, version: int, is_flexible: bool) -> None:
        self._cls = cls
        self._version = version
        self._is_flexible = is_flexible
        self._lines = [f"def {signature}:"]
        self._values: dict[str, Any] = {
            "read_uvarint": read_uvarint,
            "write_uvarint": write_uvarint,
            "write_records": write_records,
            "check_length": check_length,
            "refuse_count": refuse_count,
            "refuse_null": refuse_null,
            "refuse_tag": refuse_tag,
            "refuse_tag_size": refuse_tag_size,
            "read_text": read_text,
            "UUID": UUID,
        }
        self._depth = 1
        self._name_count = 0
        fields = [item for item in wire_fields(cls) if version in item[1].versions]
        self._plain = [item for item in fields if item[1].tag is None]
        self._tagged = [item for item in fields if item[1].tag is not None]

    def _add(self, *lines: str) -> None:
        self._lines.extend("    " * self._depth + line for line in lines)

    @contextmanager
    def _block(self, head: str) -> Iterator[None]:
        self._add(head)
        self._depth += 1
        yield
        self._depth -= 1

    def _constant(self, value: object) -> str:
        """A name for a value that the function uses."""
        name = self._local("constant")
        self._values[name] = value
        return name

    def _local(self, prefix: str = "x") -> str:
        """A name that the function does not use yet."""
        self._name_count += 1
        return f"{prefix}{self._name_count}"

    def _make(self, function: str) -> Any:
        exec(compile("\n".join(self._lines), f"<{function}>", "exec"), self._values)
        return self._values[function]

    def _is_nullable(self, field: WireField) -> bool:
        return self._version in field.nullable


class _DecoderSource(_FunctionSource):
    def __init__(self, cls: type, version: int, is_flexible: bool) -> None:
        super().__init__("decode(data, at, left)", cls, version, is_flexible)

    def compile(self) -> Decoder:
        values: dict[str, str] = {}
        self._read_plain(values)
        for name, _, default in self._tagged:
            values[name] = self._local()
            self._add(f"{values[name]} = {self._default(default)}")
        if self._is_flexible:
            self._read_tags(values)
        arguments = [
            values[name] if name in values else self._default(default)
            for name, _, default in wire_fields(self._cls)
        ]
        self._add(f"return {self._constant(self._cls)}({', '.join(arguments)}), at")
        decode: Decoder = self._make("decode")
        return decode

    def _default(self, default: Any) -> str:
        if default is list:
            return "[]"
        return self._constant(default) + ("()" if isinstance(default, type) else "")

    def _read_plain(self, values: dict[str, str]) -> None:
        run: list[tuple[str, Kind]] = []
        for name, field, _ in self._plain:
            if field.type.kind.is_fixed:
                values[name] = self._local()
                run.append((values[name], field.type.kind))
                continue
            self._read_run(run)
            run = []
            values[name] = self._read(field.type, name, self._is_nullable(field))
        self._read_run(run)

    def _read_run(self, run: list[tuple[str, Kind]]) -> None:
        if not run:
            return
        packed = Struct(">" + "".join(kind.value for _, kind in run))
        targets = ", ".join(name for name, _ in run)
        self._add(
            f"{targets}, = {self._constant(packed.unpack_from)}(data, at)", f"at += {packed.size}"
        )

    def _read(self, type: FieldType, name: str, is_nullable: bool) -> str:
        """Adds lines that read a value; returns its name."""
        value = self._local()
        match type.kind:
            case kind if kind.is_fixed:
                self._read_run([(value, kind)])
            case Kind.UUID:
                self._add(
                    "check_length(data, at, 16)",
                    f"{value} = UUID(bytes=bytes(data[at:at + 16]))",
                    "at += 16",
                )
            case Kind.STRUCT:
                self._read_struct(type, value, is_nullable)
            case kind:
                length = self._read_length(kind)
                with self._block(f"if {length} < 0:"):
                    if not is_nullable:
                        self._add(f"refuse_null(at, {name!r})")
                    self._add(f"{value} = None")
                with self._block("else:"):
                    if kind is Kind.ARRAY:
                        self._read_elements(type, name, value, length)
                    else:
                        self._read_bytes(kind, value, length)
        return value

    def _read_struct(self, type: FieldType, value: str, is_nullable: bool) -> None:
        assert type.struct is not None
        inner = self._constant(decoder(type.struct, self._version, self._is_flexible))
        call = f"{value}, at = {inner}(data, at, left)"
        if not is_nullable:
            self._add(call)
            return
        mark = self._local()
        self._read_run([(mark, Kind.INT8)])
        self._add(f"{value} = None")
        with self._block(f"if {mark} >= 0:"):
            self._add(call)

    def _read_length(self, kind: Kind) -> str:
        """A length, -1 for null."""
        length = self._local()
        if self._is_flexible:
            # Nearly all lengths have one byte: those are read without a call.
            self._add(f"{length} = data[at] - 1", f"if {length} < 0x7F: at += 1")
            with self._block("else:"):
                self._add(f"{length}, at = read_uvarint(data, at)", f"{length} -= 1")
        else:
            self._read_run([(length, _length_kind(kind))])
        return length

    def _read_bytes(self, kind: Kind, value: str, length: str) -> None:
        end = self._local()
        expression = {
            Kind.STRING: f"read_text(data, at, {end})",
            Kind.BYTES: f"bytes(data[at:{end}])",
            Kind.RECORDS: f"data[at:{end}]",
        }[kind]
        self._add(
            f"{end} = at + {length}",
            f"if {end} > len(data): check_length(data, at, {length})",
            f"{value} = {expression}",
            f"at = {end}",
        )

    def _read_elements(self, type: FieldType, name: str, value: str, count: str) -> None:
        assert type.element is not None
        # Each element has a byte at least.
        self._add(f"check_length(data, at, {count})")
        self._add_count_check(count)
        if type.element.kind.is_fixed:
            item = Struct(">" + type.element.kind.value)
            size = f"{count} * {item.size}"
            unpack = self._constant(item.iter_unpack)
            self._add(
                f"check_length(data, at, {size})",
                f"{value} = [item for item, in {unpack}(data[at:at + {size}])]",
                f"at += {size}",
            )
            return
        self._add(f"{value} = []")
        with self._block(f"for _ in range({count}):"):
            element = self._read(type.element, name, False)
            self._add(f"{value}.append({element})")

    def _add_count_check(self, count: str) -> None:
        """Adds lines that check the count of elements against the limit of the message."""
        self._add(f"left[0] -= {count}", "if left[0] < 0: refuse_count()")

    def _read_tags(self, values: dict[str, str]) -> None:
        """Reads each tagged field from its own bytes alone, so that a message takes linear time."""
        count, tag, last, size, end = (self._local() for _ in range(5))
        self._add("if data[at] == 0: at += 1")
        with self._block("else:"):
            self._add(f"{count}, at = read_uvarint(data, at)")
            self._add_count_check(count)
            self._add(f"{last} = -1")
            with self._block(f"for _ in range({count}):"):
                self._add(
                    f"{tag}, at = read_uvarint(data, at)",
                    f"if {tag} <= {last}: refuse_tag(at, {tag}, {last})",
                    f"{last} = {tag}",
                    f"{size}, at = read_uvarint(data, at)",
                    f"check_length(data, at, {size})",
                    f"{end} = at + {size}",
                )
                for name, field, _ in self._tagged:
                    with self._block(f"if {tag} == {field.tag}:"):
                        self._read_tagged(field, name, values[name], end)
                self._add(f"at = {end}")

    def _read_tagged(self, field: WireField, name: str, target: str, end: str) -> None:
        message = self._local()
        self._add(f"{message} = data", f"data = data[:{end}]")
        value = self._read(field.type, name, self._is_nullable(field))
        self._add(
            f"if at != {end}: refuse_tag_size(at, {name!r}, {end})",
            f"{target} = {value}",
            f"data = {message}",
        )


class _EncoderSource(_FunctionSource):
    def __init__(self, cls: type, version: int, is_flexible: bool) -> None:
        super().__init__("encode(out, message)", cls, version, is_flexible)

    def compile(self) -> Encoder:
        run: list[tuple[str, Kind]] = []
        for name, field, _ in self._plain:
            if field.type.kind.is_fixed:
                run.append((f"message.{name}", field.type.kind))
                continue
            self._write_run(run)
            run = []
            self._write(field.type, f"message.{name}", self._is_nullable(field), "out")
        self._write_run(run)
        if self._is_flexible:
            self._write_tags()
        self._add("return")
        encode: Encoder = self._make("encode")
        return encode

    def _write_run(self, run: list[tuple[str, Kind]], out: str = "out") -> None:
        if run:
            pack = self._constant(Struct(">" + "".join(kind.value for _, kind in run)).pack)
            self._add(f"{out} += {pack}({', '.join(value for value, _ in run)})")

    def _write(self, type: FieldType, value: str, is_nullable: bool, out: str) -> None:
        match type.kind:
            case kind if kind.is_fixed:
                self._write_run([(value, kind)], out)
            case Kind.UUID:
                self._add(f"{out} += {value}.bytes")
            case Kind.STRUCT:
                self._write_struct(type, value, is_nullable, out)
            case kind:
                with self._block(f"if {value} is None:"):
                    if is_nullable:
                        self._write_length(kind, "-1", out)
                    else:
                        name = value.removeprefix("message.")
                        message = f"{name} of {self._cls.__name__} is None"
                        self._add(f"raise ValueError({message!r})")
                with self._block("else:"):
                    if kind is Kind.ARRAY:
                        self._write_elements(type, value, out)
                    else:
                        self._write_bytes(kind, value, out)

    def _write_struct(self, type: FieldType, value: str, is_nullable: bool, out: str) -> None:
        assert type.struct is not None
        inner = self._constant(encoder(type.struct, self._version, self._is_flexible))
        call = f"{inner}({out}, {value})"
        if not is_nullable:
            self._add(call)
            return
        self._add(f"if {value} is None: {out}.append(0xFF)")
        with self._block("else:"):
            self._add(f"{out}.append(1)", call)

    def _write_length(self, kind: Kind, length: str, out: str) -> None:
        if self._is_flexible:
            size = self._local()
            self._add(
                f"{size} = {length} + 1",
                f"if {size} < 0x80: {out}.append({size})",
                f"else: write_uvarint({out}, {size})",
            )
        else:
            self._write_run([(length, _length_kind(kind))], out)

    def _write_bytes(self, kind: Kind, value: str, out: str) -> None:
        data = value
        if kind is Kind.STRING:
            data = self._local()
            self._add(f"{data} = {value}.encode()")
        self._write_length(kind, f"len({data})", out)
        if kind is Kind.RECORDS:
            self._add(f"write_records({out}, {data})")
        else:
            self._add(f"{out} += {data}")

    def _write_elements(self, type: FieldType, value: str, out: str) -> None:
        assert type.element is not None
        self._write_length(Kind.ARRAY, f"len({value})", out)
        item = self._local()
        with self._block(f"for {item} in {value}:"):
            self._write(type.element, item, False, out)

    def _write_tags(self) -> None:
        """Writes tagged fields whose value is not the default."""
        if not self._tagged:
            self._add("out.append(0)")
            return
        parts = self._local()
        self._add(f"{parts} = None")
        for name, field, default in sorted(self._tagged, key=lambda item: item[1].tag or 0):
            with self._block(f"if {self._differs(name, default)}:"):
                part = self._local()
                self._add(f"{part} = bytearray()")
                self._write(field.type, f"message.{name}", self._is_nullable(field), part)
                self._add(f"{parts} = {parts} or []", f"{parts}.append(({field.tag}, {part}))")
        self._add(f"if {parts} is None: out.append(0)")
        tag, part = self._local(), self._local()
        with self._block("else:"):
            self._add(f"write_uvarint(out, len({parts}))")
            with self._block(f"for {tag}, {part} in {parts}:"):
                self._add(
                    f"write_uvarint(out, {tag})",
                    f"write_uvarint(out, len({part}))",
                    f"out += {part}",
                )

    def _differs(self, name: str, default: Any) -> str:
        if default is list:
            return f"message.{name} or message.{name} is None"
        if not isinstance(default, type):
            return f"message.{name} != {self._constant(default)}"
        # Field by field: comparing structs takes longer than all else of an idle partition.
        struct, value = default(), self._local()
        self._add(f"{value} = message.{name}")
        return " or ".join(
            f"{value}.{inner} != {self._constant(getattr(struct, inner))}"
            for inner, _, _ in wire_fields(default)
        )


def _length_kind(kind: Kind) -> Kind:
    """How versions that are not flexible write a length."""
    return Kind.INT16 if kind is Kind.STRING else Kind.INT32


__all__ = ["Decoder", "Encoder", "PartsBuffer", "StructError", "decoder", "encoder", "read_uvarint"]
