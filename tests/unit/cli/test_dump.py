"""`varve dump` reads every file of a directory, names damage, and goes on."""

import io
from functools import partial
from pathlib import Path

import pytest

import varve
from tests.check_builder import ROOT, build_store
from tests.support.varve_command import run_varve
from varve.cli.dump.files import dump_paths
from varve.cli.dump.records import DumpOptions
from varve.cli.dump.text import DumpDecoder, TextFormat, decode_text
from varve.disk import RealFileSystem
from varve.embedded.topic_table import TOPICS_FILE
from varve.records import Record, build_batch

run = partial(run_varve, "dump")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store built in memory, copied to the disk."""
    fs, _ = build_store()
    root = tmp_path_factory.mktemp("store")
    for info in fs.scan(ROOT):
        if info.is_directory:
            (root / info.name).mkdir()
            for name in fs.names(f"{ROOT}/{info.name}"):
                (root / info.name / name).write_bytes(fs.read(f"{ROOT}/{info.name}/{name}"))
        else:
            (root / info.name).write_bytes(fs.read(f"{ROOT}/{info.name}"))
    return root


@pytest.fixture
def data_file(tmp_path: Path) -> Path:
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(
        build_batch([Record(b"k", b'{"a": 1}', headers=(("h", b"x"),), timestamp=5)])
        + build_batch([Record(None, None, timestamp=6)], base_offset=1)
    )
    return path


def test_a_directory_stands_for_all_files_in_it_and_its_partitions(store: Path) -> None:
    result = run(store)
    dumped = {line.removeprefix("Dumping ") for line in result.stdout.splitlines()}
    files = [path for path in store.rglob("*") if path.is_file() and path.name != ".lock"]
    assert {str(path) for path in files} <= dumped
    assert "Ignoring" not in result.stderr


def test_small_files_have_a_line_per_entry(store: Path) -> None:
    result = run(
        store / "recovery-point-offset-checkpoint",
        store / "orders-0" / "leader-epoch-checkpoint",
        store / "orders-0" / "partition.metadata",
        store / "meta.properties",
        store / ".kafka_cleanshutdown",
    )
    assert "topic: orders partition: 0 offset: 104\n" in result.stdout
    assert "epoch: 3 startOffset: 52\n" in result.stdout
    assert "version: 0 topicId: EjRWeBI0QjSCNBI0VniavA\n" in result.stdout
    assert "version: 1 clusterId: " in result.stdout
    assert "brokerEpoch: OptionalLong.empty\n" in result.stdout


@pytest.mark.parametrize("state", [".deleted", ".cleaned", ".swap"])
def test_files_on_their_way_in_or_out_are_dumped(data_file: Path, state: str) -> None:
    renamed = data_file.rename(f"{data_file}{state}")
    result = run(renamed)
    assert result.stdout.count("baseOffset: ") == 2


def test_evidence_is_left_to_the_audit(tmp_path: Path) -> None:
    path = tmp_path / "varve-evidence.jsonl"
    path.write_text("{}\n")
    result = run(tmp_path)
    assert result.stdout == ""
    expected = f"Skipping {path}: evidence of removals, `varve audit` reads it\n"
    assert result.stderr == expected


def test_unknown_files_are_ignored_with_a_word(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    result = run(tmp_path)
    assert result.stdout == ""
    assert result.stderr == f"Ignoring unknown file {tmp_path}/notes.txt\n"


def test_files_are_accepted_as_kafkas_tool_takes_them(store: Path) -> None:
    partition = store / "orders-0"
    first = partition / "00000000000000000000.index"
    second = partition / "00000000000000000000.timeindex"
    assert run("--files", f"{first},{second}").stdout == run(first, second).stdout


@pytest.mark.parametrize(
    ("option", "alias"),
    [
        ("--records", "--deep-iteration"),
        ("--values", "--print-data-log"),
        ("--verify-index", "--verify-index-only"),
        ("--sanity-check", "--index-sanity-check"),
    ],
)
def test_options_have_the_names_of_kafkas_tool_too(store: Path, option: str, alias: str) -> None:
    partition = store / "orders-0"
    assert run(alias, partition).stdout == run(option, partition).stdout
    _, _, listed = run("--help").stdout.partition("\nOptions:\n")
    assert option in listed
    assert alias not in listed


def test_keys_and_values_are_printed_when_asked(data_file: Path) -> None:
    lines = run("--values", data_file).stdout.splitlines()
    assert lines[3].endswith('sequence: -1 headerKeys: [h] key: k payload: {"a": 1}')
    assert lines[5].endswith("keySize: -1 valueSize: -1 sequence: -1 headerKeys: []")


def test_record_metadata_can_be_left_out(data_file: Path) -> None:
    lines = run("--values", "--skip-record-metadata", data_file).stdout.splitlines()
    assert lines[3] == '| key: k payload: {"a": 1}'


def test_a_decoder_implies_printing(data_file: Path) -> None:
    assert 'payload: {"a":1}' in run("--value-decoder", "json", data_file).stdout
    assert "key: 6b payload" in run("--key-decoder", "hex", data_file).stdout


@pytest.mark.parametrize(
    ("decoder", "data", "text"),
    [
        (DumpDecoder.UTF_8, b"\xc3\xa4\xff", "ä�"),
        (DumpDecoder.HEX, b"\x00\xff", "00ff"),
        (DumpDecoder.BASE64, b"\x00\xff", "AP8="),
        (DumpDecoder.JSON, b'{ "a" : [1, "\xc3\xa4"] }', '{"a":[1,"ä"]}'),
        (DumpDecoder.JSON, b"{", "<not json: 7b>"),
        (DumpDecoder.INT, b"\xff\xff\xff\xfe", "-2"),
        (DumpDecoder.INT, b"\x01", "<not int: 01>"),
        (DumpDecoder.LONG, b"\x00" * 7 + b"\x07", "7"),
    ],
)
def test_decoders_show_bytes_and_name_what_does_not_fit(
    decoder: DumpDecoder, data: bytes, text: str
) -> None:
    assert decode_text(decoder, data) == text


def test_only_a_prefix_is_read_when_asked(data_file: Path) -> None:
    result = run("--max-bytes", 100, data_file)
    assert result.stdout.count("baseOffset: ") == 1
    assert "invalid bytes" not in result.stdout


def test_damage_is_named_and_the_next_file_follows(data_file: Path, store: Path) -> None:
    data = bytearray(data_file.read_bytes())
    data[70] ^= 1
    data_file.write_bytes(bytes(data) + b"\0" * 20)
    result = run("--records", data_file, data_file.parent / "missing", store, code=1)
    assert "isvalid: false" in result.stdout
    assert f"{data_file}: position 0: the batch's CRC-32C" in result.stderr
    assert f"{data_file}: position {len(data)}: the batch's length" in result.stderr
    assert f"Found 20 invalid bytes at the end of {data_file.name}" in result.stdout
    assert f"{data_file.parent}/missing: No such file" in result.stderr
    assert "Dumping " + str(store / "meta.properties") in result.stdout


def test_damaged_small_files_are_named(tmp_path: Path) -> None:
    broken = {
        "00000000000000000000.snapshot": b"\x00\x01",
        "00000000000000000000.txnindex": b"\x00" * 40,
        "recovery-point-offset-checkpoint": b"0\n3\n",
        "leader-epoch-checkpoint": b"0\n1\nx y\n",
        "partition.metadata": b"?",
        "meta.properties": b"version=9\n",
    }
    for name, data in broken.items():
        (tmp_path / name).write_bytes(data)
    result = run(tmp_path, code=1)
    for name in broken:
        assert f"{tmp_path}/{name}: " in result.stderr


def test_json_has_an_object_for_every_batch_record_and_entry(store: Path) -> None:
    result = run("--json", "--values", store)
    documents = result.rows
    types = {document["type"] for document in documents}
    assert types == {
        *("file", "logStart", "batch", "record", "offsetIndexEntry", "timeIndexEntry"),
        *("abortedTransaction", "producer", "leaderEpoch", "checkpoint", "partitionMetadata"),
        *("directoryMetadata", "cleanShutdown", "appendTimes"),
    }
    batches = [document for document in documents if document["type"] == "batch"]
    records = [document for document in documents if document["type"] == "record"]
    assert sum(batch["count"] for batch in batches) == len(records) == 104
    assert records[0]["key"] == "k0"
    markers = [record for record in records if "controlType" in record]
    assert {marker["controlType"] for marker in markers} == {"COMMIT", "ABORT"}


def test_json_has_problems_in_their_place(data_file: Path) -> None:
    data_file.write_bytes(data_file.read_bytes()[:-3] + b"\x01\x02\x03")
    result = run("--json", data_file, code=1)
    types = [document["type"] for document in result.rows]
    assert types == ["file", "logStart", "batch", "batch", "problem"]
    assert result.rows[-1]["position"] == 81


def test_indexes_can_be_checked_without_listing_them(store: Path) -> None:
    partition = store / "orders-0"
    index = partition / "00000000000000000029.index"
    times = partition / "00000000000000000029.timeindex"
    assert run("--verify-index", index, times).stdout.splitlines() == [
        f"Dumping {index}",
        f"Dumping {times}",
    ]
    sane = run("--sanity-check", index, times)
    assert f"{index} passed sanity check." in sane.stdout
    assert f"{times} passed sanity check." in sane.stdout


def test_an_index_that_cannot_be_true_fails_its_sanity_check(store: Path, tmp_path: Path) -> None:
    index = tmp_path / "00000000000000000029.index"
    index.write_bytes((store / "orders-0" / index.name).read_bytes()[:-3])
    result = run("--sanity-check", index, code=1)
    assert "not a multiple of the entry size" in result.stderr


def test_entries_that_do_not_fit_the_data_are_complained_about(store: Path, tmp_path: Path) -> None:
    for suffix in (".log", ".index", ".timeindex"):
        name = f"00000000000000000029{suffix}"
        (tmp_path / name).write_bytes((store / "orders-0" / name).read_bytes())
    index = tmp_path / "00000000000000000029.index"
    data = bytearray(index.read_bytes())
    data[3] -= 1
    index.write_bytes(bytes(data))
    result = run(index)
    assert f"Mismatches in :{index}\n  Index offset: " in result.stderr


def test_a_metadata_snapshot_is_read_as_data(data_file: Path) -> None:
    snapshot = data_file.rename(data_file.parent / "00000000000000000007-0000000002.checkpoint")
    assert "Snapshot end offset: 7, epoch: 2\n" in run(snapshot).stdout
    bootstrap = snapshot.rename(data_file.parent / "bootstrap.checkpoint")
    assert "KRaft bootstrap snapshot\n" in run(bootstrap).stdout


def test_every_type_and_field_of_the_json_is_documented(store: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "reference" / "dump-json.md").read_text()
    for document in run("--json", "--values", store).rows:
        for name in (document["type"], *document):
            assert f"`{name}`" in page


class _Leaving(io.StringIO):
    """An output whose reader leaves when the first batch comes."""

    def write(self, text: str) -> int:
        if text.startswith("baseOffset"):
            raise BrokenPipeError
        return super().write(text)


def test_an_output_that_fails_is_not_taken_for_a_broken_file(data_file: Path) -> None:
    errors = io.StringIO()
    format = TextFormat(_Leaving(), errors)
    with pytest.raises(BrokenPipeError):
        dump_paths(RealFileSystem(), [str(data_file)], DumpOptions(), format)
    assert errors.getvalue() == ""


def test_the_table_of_topics_is_shown(tmp_path: Path) -> None:
    with varve.open(tmp_path / "data", maintain=False) as opened:
        opened.create_topic("orders", partitions=3, settings={"segment.bytes": 1000})
    path = tmp_path / "data" / TOPICS_FILE
    assert "topic: orders topicId: " in run(path).stdout
    (_, topic) = run("--json", path).rows
    assert (topic["type"], topic["topic"], topic["partitions"]) == ("topic", "orders", 3)
    assert topic["settings"] == {"segment.bytes": "1000"}
