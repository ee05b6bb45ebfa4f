"""A partition directory names its topic by id."""

import random
from uuid import UUID

import pytest

from varve.commit_log.directory_files import (
    decode_partition_metadata,
    decode_topic_id,
    encode_partition_metadata,
    encode_topic_id,
    random_topic_id,
)
from varve.foundation.errors import Corrupt

ID = UUID("5a1f3c2e-8b6d-4f70-9a21-c3d4e5f60718")
TEXT = "Wh88LottT3CaIcPU5fYHGA"


def test_id_is_twenty_two_characters() -> None:
    assert encode_topic_id(ID) == TEXT
    assert decode_topic_id(TEXT) == ID
    assert encode_topic_id(UUID(int=2**128 - 1)) == "_" * 21 + "w"


@pytest.mark.parametrize("text", ["", TEXT[:-1], TEXT + "A", TEXT + "==", "+" + TEXT[1:], "ä" * 22])
def test_other_text_is_no_id(text: str) -> None:
    with pytest.raises(Corrupt, match="some place"):
        decode_topic_id(text, "some place")


def test_random_ids_never_look_like_an_option() -> None:
    source = random.Random(7)
    ids = [random_topic_id(source) for _ in range(2_000)]
    assert len(set(ids)) == len(ids)
    assert UUID(int=0) not in ids
    assert not any(encode_topic_id(id).startswith("-") for id in ids)


def test_file_has_two_lines_and_no_final_newline() -> None:
    data = encode_partition_metadata(ID)
    assert data == b"version: 0\ntopic_id: " + TEXT.encode()
    assert decode_partition_metadata(data, "x") == ID


@pytest.mark.parametrize(
    "data",
    [
        f"version: 1\ntopic_id: {TEXT}\n",
        f"topic_id:\t {TEXT}\r\nversion:  0",
        f"version: 0\nother: 5\ntopic_id: {TEXT}",
    ],
)
def test_order_blanks_and_newer_fields_are_read(data: str) -> None:
    assert decode_partition_metadata(data.encode(), "x") == ID


@pytest.mark.parametrize(
    "data",
    [
        "",
        "version: 0",
        f"topic_id: {TEXT}",
        f"version: -1\ntopic_id: {TEXT}",
        f"version: x\ntopic_id: {TEXT}",
        f"version:0\ntopic_id: {TEXT}",
        f"version: 0\n\ntopic_id: {TEXT}",
        f"version: 0\ntopic_id: {TEXT}: x",
        "version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAA",
        "version: 0\ntopic_id: nonsense",
        "\0" * 43,
    ],
)
def test_broken_file_is_refused_by_name(data: str) -> None:
    with pytest.raises(Corrupt, match="some/file"):
        decode_partition_metadata(data.encode(), "some/file")
