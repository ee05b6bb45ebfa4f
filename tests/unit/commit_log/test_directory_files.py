"""A log directory names its owner, a partition directory its topic."""

import random
from uuid import UUID

import pytest

from varve.commit_log.directory_files import (
    DirectoryMetadata,
    decode_clean_shutdown,
    decode_meta_properties,
    decode_partition_metadata,
    decode_properties,
    decode_topic_id,
    encode_meta_properties,
    encode_partition_metadata,
    encode_topic_id,
    random_topic_id,
)
from varve.foundation.errors import Corrupt, UnsupportedFormat

ID = UUID("5a1f3c2e-8b6d-4f70-9a21-c3d4e5f60718")


def test_version_one_is_written_sorted_and_read_back() -> None:
    metadata = DirectoryMetadata(cluster_id="c-1", node_id=3, directory_id=ID)
    data = encode_meta_properties(metadata)
    assert data == (b"cluster.id=c-1\ndirectory.id=Wh88LottT3CaIcPU5fYHGA\nnode.id=3\nversion=1\n")
    assert decode_meta_properties(data, "x") == metadata


def test_version_zero_has_a_broker_id_and_may_lack_everything() -> None:
    metadata = DirectoryMetadata(version=0, cluster_id=None, node_id=2)
    assert encode_meta_properties(metadata) == b"broker.id=2\nversion=0\n"
    assert decode_meta_properties(b"broker.id=2", "x") == metadata
    assert decode_meta_properties(b"", "x").node_id is None
    assert decode_meta_properties(b"node.id=2", "x").node_id is None


def test_file_of_a_broker_is_read() -> None:
    data = (
        b"#\n#Sun Nov 15 20:45:48 UTC 2026\nnode.id=1\ndirectory.id=V44-F6t7yaT5IT1rzfJgGQ\n"
        b"version=1\ncluster.id=dmFydmUtY29uZm9ybS0wMQ\n"
    )
    metadata = decode_meta_properties(data, "x")
    assert (metadata.version, metadata.node_id) == (1, 1)
    assert metadata.cluster_id == "dmFydmUtY29uZm9ybS0wMQ"


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"version=1\nnode.id=1", "needs cluster.id"),
        (b"version=1\ncluster.id=c\nbroker.id=1", "needs node.id"),
        (b"version=1\ncluster.id=c\nnode.id=one", "node.id 'one'"),
        (b"version=1\ncluster.id=c\nnode.id=2147483648", "node.id '2147483648'"),
        (b"version=\n", "version ''"),
        (b"version=1\ncluster.id=c\nnode.id=1\ndirectory.id=short", "directory.id: 'short'"),
        (b"a\n\nversion=\\u00zz", r"line 3: \\u00zz"),
        (b"version=\\u", "line 1"),
    ],
)
def test_broken_file_is_refused_by_name(data: bytes, problem: str) -> None:
    with pytest.raises(Corrupt, match=f"some/file: .*{problem}"):
        decode_meta_properties(data, "some/file")


@pytest.mark.parametrize("version", [b"2", b"-1"])
def test_unknown_version_is_refused(version: bytes) -> None:
    with pytest.raises(UnsupportedFormat):
        decode_meta_properties(b"version=" + version, "x")


@pytest.mark.parametrize(
    ("text", "pairs"),
    [
        ("a=1\nb:2\rc 3\r\nd\t=\t4", {"a": "1", "b": "2", "c": "3", "d": "4"}),
        ("# x\n! y\n  # z\n\n \t\n", {}),
        ("key", {"key": ""}),
        ("a = b = c ", {"a": "b = c "}),
        (r"a\=b\:c\ d=e", {"a=b:c d": "e"}),
        ("a=one \\\n   two\\\n\tthree", {"a": "one twothree"}),
        ("a=x\\\\\nb=y", {"a": "x\\", "b": "y"}),
        ("a=x\\", {"a": "x"}),
        ("a=\\\n# no comment", {"a": "# no comment"}),
        (r"a=\t\n\r\f\q\u00e9\uD83D\uDE00", {"a": "\t\n\r\fq\xe9\U0001f600"}),
        ("a=1\na=2", {"a": "2"}),
        ("=v", {"": "v"}),
    ],
)
def test_properties_are_read_as_java_reads_them(text: str, pairs: dict[str, str]) -> None:
    assert decode_properties(text, "x") == pairs


@pytest.mark.parametrize("id", ["a=b: #!\\", "\t\n\r\f ", "\xe9\u20ac\U0001f600", ""])
def test_any_cluster_id_survives(id: str) -> None:
    metadata = DirectoryMetadata(cluster_id=id, node_id=0)
    assert decode_meta_properties(encode_meta_properties(metadata), "x") == metadata


def test_clean_shutdown_mark() -> None:
    assert decode_clean_shutdown(b'{"version":0,"brokerEpoch":108}') == 108


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"[]",
        b"7",
        b"{}",
        b'{"version":0}',
        b'{"version":0,"brokerEpoch":-1}',
        b'{"version":0,"brokerEpoch":"1"}',
        b'{"version":0,"brokerEpoch":true}',
        b'{"version":1,"brokerEpoch":5}',
        b"[" * 100_000,
        b"9" * 10_000,
    ],
)
def test_mark_of_any_content_yields_no_broker_epoch(data: bytes) -> None:
    assert decode_clean_shutdown(data) is None


# The topic of a partition


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


def test_partition_metadata_has_two_lines_and_no_final_newline() -> None:
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
def test_broken_partition_metadata_is_refused_by_name(data: str) -> None:
    with pytest.raises(Corrupt, match="some/file"):
        decode_partition_metadata(data.encode(), "some/file")
