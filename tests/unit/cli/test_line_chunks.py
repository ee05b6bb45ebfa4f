"""Lines arrive whole, whatever pieces the bytes come in."""

import io
import os
import threading

import pytest

from varve.cli import record_format
from varve.cli.record_format import read_chunks
from varve.foundation.errors import InvalidRecord


def _lines(stream: io.BufferedIOBase) -> list[tuple[int, bytes]]:
    return [
        (chunk.first + index, line)
        for chunk in read_chunks(stream)  # type: ignore[arg-type]  # any binary stream will do
        for index, line in enumerate(chunk.lines)
    ]


@pytest.mark.parametrize("chunk_bytes", [1, 2, 3, 7, 1 << 20])
def test_lines_are_numbered_and_whole(monkeypatch: pytest.MonkeyPatch, chunk_bytes: int) -> None:
    monkeypatch.setattr(record_format, "_CHUNK_BYTES", chunk_bytes)
    found = _lines(io.BytesIO(b"one\n\ntwo\r\nthree"))
    assert found == [(1, b"one"), (2, b""), (3, b"two"), (4, b"three")]


def test_a_pipe_gives_what_has_arrived_without_waiting_for_more() -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as stream:
        chunks = read_chunks(stream)
        os.write(writing, b"first\nhalf ")
        assert next(chunks).lines == [b"first"]
        threading.Timer(0.05, os.write, (writing, b"line\n")).start()
        chunk = next(chunks)
        assert (chunk.first, chunk.lines) == (2, [b"half line"])
        os.close(writing)
        assert list(chunks) == []


def test_a_line_without_end_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_format, "LINE_BYTES_MAX", 100)
    monkeypatch.setattr(record_format, "_CHUNK_BYTES", 10)
    with pytest.raises(InvalidRecord, match="line 2 is longer than 100 bytes"):
        _lines(io.BytesIO(b"ok\n" + b"x" * 1000))
