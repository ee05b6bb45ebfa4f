"""Names of files and directories are Kafka's, and only Kafka's are taken."""

import random

import pytest

from varve.commit_log.names import (
    CLEANED,
    DELETED,
    INDEX,
    KEYS,
    SNAPSHOT,
    SWAP,
    TIME_INDEX,
    TXN_INDEX,
    DirectoryState,
    SegmentFileName,
    TopicPartition,
    delete_directory_name,
    future_directory_name,
    is_unfinished_key_index,
    log_name,
    parse_file_name,
    parse_partition_directory,
    random_directory_id,
    validate_topic_name,
)
from varve.foundation.errors import Corrupt, InvalidRequest

ID = "0123456789abcdef0123456789abcdef"


def test_file_names_carry_twenty_digits() -> None:
    assert log_name(42) == "00000000000000000042.log"
    assert log_name(2**63 - 1, TIME_INDEX) == "09223372036854775807.timeindex"


@pytest.mark.parametrize("kind", [".log", INDEX, TIME_INDEX, TXN_INDEX, KEYS, SNAPSHOT])
@pytest.mark.parametrize("state", ["", DELETED, CLEANED, SWAP])
def test_file_names_are_read_back(kind: str, state: str) -> None:
    assert parse_file_name(log_name(7, kind) + state) == SegmentFileName(7, kind, state)


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".log",
        "7.log",
        "00000000000000000007",
        "00000000000000000007.txt",
        "00000000000000000007.log.tmp",
        "00000000000000000007.log.swap.deleted",
        "00000000000000000007.log\n",
        "99999999999999999999.log",
        "-0000000000000000007.log",
        "\u0660" * 20 + ".log",
        "leader-epoch-checkpoint",
    ],
)
def test_other_files_are_nobody(name: str) -> None:
    assert parse_file_name(name) is None


@pytest.mark.parametrize("name", ["a", "orders", "A.b_c-9", "x" * 249, "..."])
def test_good_topic_names_pass(name: str) -> None:
    validate_topic_name(name)


@pytest.mark.parametrize("name", ["", ".", "..", "x" * 250, "a b", "a/b", "ä", "a\n"])
def test_bad_topic_names_are_refused(name: str) -> None:
    with pytest.raises(InvalidRequest):
        validate_topic_name(name)


def test_partition_prints_as_its_directory() -> None:
    assert str(TopicPartition("a-b", 3)) == "a-b-3"
    assert sorted([TopicPartition("b", 0), TopicPartition("a", 10), TopicPartition("a", 9)])[0] == (
        TopicPartition("a", 9)
    )


def test_partition_follows_the_last_dash() -> None:
    parsed = parse_partition_directory("a-b.c-12")
    assert parsed.topic_partition == TopicPartition("a-b.c", 12)
    assert (parsed.state, parsed.id) == (DirectoryState.ACTIVE, None)


def test_marked_directories_are_read_back() -> None:
    partition = TopicPartition("my-topic.x", 4)
    for build, state in (
        (delete_directory_name, "delete"),
        (future_directory_name, "future"),
    ):
        name = build(partition, ID)
        assert name == f"my-topic.x-4.{ID}-{state}"
        parsed = parse_partition_directory(name)
        assert (parsed.topic_partition, parsed.state, parsed.id) == (partition, state, ID)


def test_a_stray_directory_is_recognised() -> None:
    parsed = parse_partition_directory(f"my-topic.x-4.{ID}-stray")
    partition = TopicPartition("my-topic.x", 4)
    assert (parsed.topic_partition, parsed.state, parsed.id) == (partition, "stray", ID)


def test_long_delete_names_are_cut_in_the_topic() -> None:
    partition = TopicPartition("t" * 249, 123)
    name = delete_directory_name(partition, ID)
    assert len(name) == 255
    parsed = parse_partition_directory(name)
    assert parsed.topic_partition.partition == 123
    assert set(parsed.topic_partition.topic) == {"t"}
    assert len(future_directory_name(partition, ID)) > 255


@pytest.mark.parametrize(
    "name",
    [
        "",
        "topic",
        "-0",
        "topic-",
        "topic-x",
        "topic-1_0",
        "topic-+1",
        "topic-01",
        "topic-00",
        "topic-2147483648",
        "topic-0-delete",
        "topic-0.-delete",
        f"topic.{ID}-delete",
        f"topic-x.{ID}-stray",
        "lost+found",
        "topic-\u0663",
    ],
)
def test_other_directories_are_refused_with_their_name(name: str) -> None:
    with pytest.raises(Corrupt, match="not named like a partition"):
        parse_partition_directory(name)


def test_directory_ids_are_hex() -> None:
    source = random.Random(1)
    ids = {random_directory_id(source) for _ in range(20)}
    assert len(ids) == 20
    assert all(len(id) == 32 and int(id, 16) >= 0 for id in ids)


def test_parts_of_a_key_index_in_the_making_are_known() -> None:
    for ending in (".keys.tmp", ".keys.run", ".keys.cleaned.tmp", ".keys.cleaned.run"):
        assert is_unfinished_key_index(log_name(7, ending))
    for name in (log_name(7, ".keys"), log_name(7, ".log.tmp"), "7.keys.tmp", "keys.run"):
        assert not is_unfinished_key_index(name)
