"""The commands of `varve dedup`, on a directory and through a broker."""

import signal
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import varve
from tests.support.varve_command import run_varve
from varve.records import Record, build_batch
from varve.testing.kafka_kit import KafkaKit

Run = Callable[..., Any]
TIME = 1_700_000_000_000
COPIES = [(b"a", 0), (b"b", 1_000), (b"a", 2_000), (b"a", 900_000), (None, 900_000), (b"b", 1_500)]
RULES = ("--by", "key", "--window", "10m", "--lateness", "5m")


def batch_of(copies: list[tuple[bytes | None, int]]) -> bytes:
    return build_batch([Record(key, b"%d" % at, timestamp=TIME + at) for key, at in copies])


run = partial(run_varve, COLUMNS="150")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    with varve.open(tmp_path / "data", maintain=False) as store:
        topic = store.create_topic("orders", partitions=2)
        topic.append_batch(batch_of(COPIES), 0)
    return tmp_path / "data"


def committed(place: Path, topic: str) -> list[bytes | None]:
    with varve.open(place, maintain=False) as store:
        return [one.value for one in store.topic(topic).read(isolation="read_committed")]


def test_a_run_tells_a_line_for_each_partition(place: Path) -> None:
    result = run("dedup", "run", "orders", "--to", "once", *RULES, "--dir", str(place))
    rows = [line.split() for line in result.stdout.splitlines()]
    assert rows[0][:3] == ["partition", "position", "lag"]
    assert rows[1][:3] == ["0", "6", "0"]
    assert rows[3][0] == "all"
    assert "6 records in" in result.stderr
    assert committed(place, "once") == [b"0", b"1000", b"900000", b"900000", b"1500"]
    assert (place.parent / "data.dedup" / "once" / "0").is_dir()


def test_a_second_run_goes_on(place: Path) -> None:
    arguments = ("dedup", "run", "orders", "--to", "once", *RULES, "-d", str(place), "--json")
    first, second, total = run(*arguments).rows
    assert (first["type"], first["kept"], first["duplicates"]) == ("partition", 3, 1)
    assert (first["late"], first["no_id"], second["records"]) == (1, 1, 0)
    assert (total["type"], total["records"]) == ("dedup", 6)
    assert run(*arguments).rows[-1]["records"] == 0
    assert len(committed(place, "once")) == 5


def test_policies_have_their_topics(place: Path) -> None:
    arguments = ("--late", "side:aside", "--no-id", "drop", "--name", "strict")
    run("dedup", "run", "orders", "--to", "once", *RULES, *arguments, "-d", str(place))
    assert committed(place, "once") == [b"0", b"1000", b"900000"]
    assert committed(place, "aside") == [b"1500"]
    found = run("dedup", "status", "strict", "-d", str(place), "--json")
    assert found.rows[0]["output"] == "once"


def test_other_rules_need_another_name(place: Path) -> None:
    run("dedup", "run", "orders", "--to", "once", *RULES, "-d", str(place))
    other = ("--by", "key", "--window", "1h")
    failed = run("dedup", "run", "orders", "--to", "once", *other, "-d", str(place), code=1)
    assert "start again with another --name" in failed.told
    assert failed.stderr.count("error:") == 1


def test_status_shows_the_state_as_well(place: Path) -> None:
    run("dedup", "run", "orders", "--to", "once", *RULES, "-d", str(place))
    result = run("dedup", "status", "once", "-d", str(place))
    assert result.stdout.startswith("orders to once by key, 600000 ms before")
    assert "1 of 2 partitions have committed nothing yet" in result.stderr
    row = run("dedup", "status", "once", "-d", str(place), "--json").rows[0]
    assert (row["position"], row["ids"], row["kept"]) == (6, 3, 3)
    assert row["segments"] >= 1
    assert row["bytes"] > 0


def test_a_record_is_explained(place: Path) -> None:
    run("dedup", "run", "orders", "--to", "once", *RULES, "-d", str(place))

    def explain(offset: int) -> dict[str, Any]:
        where = ("-d", str(place), "--partition", "0", "--offset", str(offset))
        (found,) = run("dedup", "explain", "once", *where, "--json").rows
        return found

    assert [explain(offset)["verdict"] for offset in range(6)] == [
        "kept",
        "kept",
        "duplicate",
        "kept",
        "no_id",
        "late",
    ]
    told = explain(2)
    assert (told["witness_offset"], told["witness_timestamp"]) == (0, TIME)
    assert "a duplicate of offset 0, which was kept" in told["text"]
    assert "2s later, within 10m" in told["text"]
    sentence = run("dedup", "explain", "once", "-d", str(place), "--offset", "5").stdout
    assert "late, more than 5m behind the newest record" in sentence
    # Policies may have been others when it was read: what is told of its fate says by which.
    assert sentence.rstrip().endswith("by the current rules")
    assert explain(4)["text"].endswith("by the current rules")
    assert "current rules" not in explain(0)["text"] + told["text"]


@pytest.fixture(scope="module")
def kit() -> Iterator[KafkaKit]:
    with KafkaKit(now_ms=TIME + 1_000_000) as made:
        yield made


def test_broker_and_directory_options_count_before_the_environment(
    kit: KafkaKit, place: Path, tmp_path: Path
) -> None:
    file = tmp_path / "client.properties"
    file.write_text("bootstrap.servers=127.0.0.1:1\n")
    environment = {"VARVE_DIR": str(tmp_path / "elsewhere"), "VARVE_COMMAND_CONFIG": str(file)}
    for where in (("-d", str(place)), ("-b", kit.bootstrap)):
        failed = run("dedup", "status", "nothing", *where, code=1, **environment)
        assert "has no deduplication 'nothing'" in failed.told


def test_a_broker_is_as_good_as_a_directory(kit: KafkaKit, tmp_path: Path) -> None:
    broker = ("--bootstrap", kit.bootstrap)
    run("topic", "create", "orders", "--partitions", "2", "--bootstrap", kit.bootstrap)
    kit.store.topic("orders").append_batch(batch_of(COPIES), 0)
    state = ("--state", str(tmp_path / "ids"))
    given = ("dedup", "run", "orders", "--to", "once", *RULES, *broker, *state, "--json")
    assert run(*given).rows[-1]["records"] == 6
    assert run(*given).rows[-1]["records"] == 0
    found = kit.store.topic("once").read(isolation="read_committed")
    assert [one.value for one in found] == [b"0", b"1000", b"900000", b"900000", b"1500"]
    row = run("dedup", "status", "once", *broker, *state, "--json").rows[0]
    assert (row["position"], row["lag"], row["ids"]) == (6, 0, 3)
    told = run("dedup", "explain", "once", *broker, "--offset", "2").stdout
    assert "a duplicate of offset 0" in told
    failed = run(*given, "-X", "nonsense=1", code=1)
    assert "client setting nonsense is not supported here" in failed.told


def _signal_after(kit: KafkaKit, topic: str, number: int) -> threading.Thread:
    """Sends this process a signal once the topic has a committed record, and the run takes it."""
    before = signal.getsignal(number)

    def work() -> None:
        for _ in range(1_200):
            known = {one.name for one in kit.store.topics()}
            has_record = topic in known and (
                kit.store.topic(topic).partition(0).log.last_stable_offset > 1
            )
            if has_record and signal.getsignal(number) is not before:
                # The kernel may choose any thread; this one does not wake the main thread.
                signal.pthread_kill(threading.get_ident(), number)
                return
            threading.Event().wait(0.02)

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_following_ends_in_order_by_a_signal(kit: KafkaKit, tmp_path: Path) -> None:
    run("topic", "create", "clicks", "--bootstrap", kit.bootstrap)
    kit.store.topic("clicks").append_batch(batch_of(COPIES))
    given = ("clicks", "--to", "clicks-once", *RULES, "--state", str(tmp_path), "--follow")
    thread = _signal_after(kit, "clicks-once", signal.SIGTERM)
    result = run("dedup", "run", *given, "-b", kit.bootstrap, "--json")
    thread.join()
    assert result.rows[-1]["records"] == 6


def test_an_interrupt_leaves_what_is_committed(kit: KafkaKit, tmp_path: Path) -> None:
    run("topic", "create", "views", "--bootstrap", kit.bootstrap)
    for number in range(60):
        kit.store.topic("views").append_batch(batch_of([(b"%d" % number, number)]))
    given = ("views", "--to", "views-once", *RULES, "--state", str(tmp_path), "-b", kit.bootstrap)
    thread = _signal_after(kit, "views-once", signal.SIGINT)
    result = run("dedup", "run", *given, "--chunk-bytes", "1", code=130)
    thread.join()
    assert "the next run continues" in result.stderr
    run("dedup", "run", *given)
    found = kit.store.topic("views-once").read(isolation="read_committed")
    assert [one.value for one in found] == [b"%d" % number for number in range(60)]
