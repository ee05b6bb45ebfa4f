"""`varve job erase` without Spark: a local topic from the dry run to the verified receipt."""

import json
import re
from functools import partial
from pathlib import Path

import click
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

import varve
from tests.support.varve_command import run_varve
from varve import TopicLocation
from varve.cli.job_erase import print_erasure
from varve.cli.output import Output
from varve.foundation.errors import InvalidRequest
from varve.foundation.settings import GivenValue
from varve.jobs.erase.request import ValueFormat, collect_field
from varve.jobs.erase.result import ErasureCost, ErasureResult
from varve.spark.functions import parse_deadline

DAY_MS = 86_400_000


run = partial(run_varve, "job", "erase", "--yes", COLUMNS="200")


@pytest.fixture
def data(tmp_path: Path) -> str:
    path = tmp_path / "data"
    with varve.open(path, maintain=False) as store:
        topic = store.create_topic("people")
        for number in range(12):
            topic.append(key=f"k{number % 4}", value=json.dumps({"email": f"p{number % 3}@x"}))
    return str(path)


def read_keys(data: str) -> list[bytes | None]:
    with varve.open(data, maintain=False) as store:
        return [one.key for one in store.topic("people").read()]


def test_a_local_topic_needs_no_spark(data: str, tmp_path: Path) -> None:
    private = Ed25519PrivateKey.generate()
    key, public = tmp_path / "key.pem", tmp_path / "public.pem"
    key.write_bytes(
        private.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    public.write_bytes(
        private.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    )
    dry = run("people", "--dir", data, "--key", "k1", "--dry-run")
    assert "a dry run: nothing was changed" in dry.stdout
    assert read_keys(data).count(b"k1") == 3
    out = tmp_path / "receipt"
    words = ("--sign-key", str(key), "--receipt", str(out), "--deadline", "30d", "--id", "first")
    done = run("people", "--dir", data, "--key", "k1", *words, VARVE_SIGN_PASSPHRASE="secret")
    assert read_keys(data) == [b"k0", b"k2", b"k3"] * 3
    assert "none found" in done.stdout
    page = (tmp_path / "receipt.html").read_text()
    assert re.search(r"(?<![\w-])k1(?![\w-])", page) is None  # as a word: ids are random letters
    document = json.loads((tmp_path / "receipt.json").read_text())
    assert document["records"] == 3
    assert document["deadline_ms"] - document["asked_ms"] == 30 * DAY_MS
    verify = ["receipt", "verify", str(tmp_path / "receipt.json"), "--public-key", str(public)]
    checked = run_varve(*verify)
    assert "the signature is valid; erasure first of people, 3 records" in checked.stdout
    (tmp_path / "receipt.json").write_text(json.dumps({**document, "records": 4}))
    run_varve(*verify, code=1)


@pytest.mark.parametrize("more", [("--dry-run",), ("--receipt", "out")])
def test_an_erasure_without_a_match_says_so(
    data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "no record: check" in run("people", "--dir", data, "--key", "typo", *more).stdout
    if "out" in more:
        assert "no record matched the request" in (tmp_path / "out.html").read_text()


def test_a_run_that_continues_an_erasure_counts_what_earlier_runs_erased(data: str) -> None:
    words = ("people", "--dir", data, "--key", "k1", "--id", "first")
    assert "no record: check" not in run(*words).stdout
    assert "no record: check" not in run(*words).stdout


def test_a_missing_topic_names_those_there_are(data: str) -> None:
    told = run("peple", "--dir", data, "--key", "k1", code=1).stderr
    assert f"no topic 'peple' in {data}; did you mean people? (topics: people)" in told


def test_a_field_is_told_as_json(data: str) -> None:
    done = run("people", "--dir", data, "--field", "email", "--value", "p1@x", "--json")
    partition, erasure = done.rows
    assert (partition["type"], partition["records"], partition["tier"]) == ("partition", 4, "hot")
    assert erasure["type"] == "erasure"
    assert erasure["receipt"]["request"]["field"]["path"] == "email"
    assert "p1@x" not in done.stdout
    assert len(read_keys(data)) == 8


def test_a_receipt_names_paths_in_full(data: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(data).parent)
    done = run("people", "--dir", "data", "--key", "k1", "--json")
    receipt = json.loads(done.stdout.splitlines()[-1])["receipt"]
    assert receipt["directories"] == [data]
    (change,) = receipt["topics"][0]["partitions"][0]["objects"]
    assert change["before"]["key"].startswith(f"{data}/people-0/")


def test_a_receipt_that_cannot_be_written_is_found_out_before(data: str, tmp_path: Path) -> None:
    (tmp_path / "taken.html").mkdir()
    for path in (tmp_path / "none" / "r", tmp_path / "taken"):
        refused = run("people", "--dir", data, "--key", "k1", "--receipt", str(path), code=1)
        assert "nothing was erased" in refused.stderr
    assert len(read_keys(data)) == 12
    run("people", "--dir", data, "--key", "k1", "--receipt", "/no/r", "--dry-run")


def test_a_receipt_that_cannot_be_written_after_all_is_told_with_what_was_done(
    data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("varve.jobs.erase.receipt.check_receipt_path", lambda path: None)
    path = str(tmp_path / "none" / "r")
    failed = run("people", "--dir", data, "--key", "k1", "--id", "it", "--receipt", path, code=1)
    assert "none found" in failed.stdout
    kept = f"{data}/varve-receipt-it.json"
    assert f"{path}.json: No such file or directory" in failed.stderr
    assert f"its receipt is at {kept}" in failed.stderr
    assert json.loads(Path(kept).read_text())["records"] == 3


def test_a_store_that_is_open_elsewhere_is_named(data: str) -> None:
    with varve.open(data, maintain=False):
        refused = run("people", "--dir", data, "--key", "k1", code=1)
    assert "is in use by this process" in refused.stderr


def test_on_a_terminal_a_no_erases_nothing(data: str, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [False, True]
    monkeypatch.setattr(click, "confirm", lambda *_, **named: answers.pop(0) or _abort())
    monkeypatch.setattr(Output, "check_terminal", lambda self, action: None)
    words = ("job", "erase", "people", "--dir", data, "--key", "k1")
    refused = run_varve(*words, code=1, COLUMNS="200")
    assert "a dry run: nothing was changed" in refused.stdout
    assert len(read_keys(data)) == 12
    done = run_varve(*words, COLUMNS="200")
    assert done.stdout.index("a dry run") < done.stdout.index("none found")
    assert b"k1" not in read_keys(data)


def _abort() -> bool:
    raise click.Abort


def test_the_estimate_of_a_dry_run_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    shown = ErasureResult(
        id="i",
        is_dry_run=True,
        partitions=(),
        outputs=("snapshot s at p",),
        out_of_reach=("a backup",),
        elapsed_ms=1,
        cost=ErasureCost(requests=7, read_bytes=1, cost=0.5, currency="USD", prices="list"),
    )
    print_erasure(shown, Output())
    printed = capsys.readouterr().out
    assert "about 7 requests" in printed
    assert "snapshot s at p" in printed
    assert "a backup" in printed


def test_a_deadline_is_a_duration_or_a_time_in_utc() -> None:
    assert parse_deadline(None, 5) is None
    assert parse_deadline("2d", 5) == 2 * DAY_MS + 5
    assert parse_deadline("1970-01-02T00:00:00Z", 5) == DAY_MS
    assert parse_deadline("1970-01-02T00:00:00", 5) == DAY_MS
    field = collect_field("a.b", ["x"], None, ValueFormat.DEBEZIUM)
    assert field is not None
    assert field.format is ValueFormat.DEBEZIUM


def test_a_disk_of_the_store_that_is_left_out_is_asked_for(tmp_path: Path) -> None:
    disks = [str(tmp_path / "d1"), str(tmp_path / "d2")]
    with varve.open(disks, maintain=False) as store:
        store.create_topic("people", partitions=4).append(key="k1", value="v")
    refused = run("people", "--dir", disks[0], "--key", "k1", code=1)
    assert "give every directory of the store" in refused.stderr


def test_a_tier_whose_place_is_told_nowhere_is_asked_for(tmp_path: Path) -> None:
    disks = [tmp_path / "d1", tmp_path / "d2"]
    paths = [str(one) for one in disks]
    with varve.open(paths, maintain=False) as store:
        store.create_topic("people", settings={"remote.storage.enable": True})
    words = [word for one in paths for word in ("--dir", one)]
    refused = run("people", *words, "--key", "k1", code=1)
    assert "no varve-tier.json of the log directories has" in refused.stderr
    place = {"format": 1, "url": "file:/cold", "metadata": "object"}
    (disks[1] / "varve-tier.json").write_text(json.dumps(place))
    bucket = TopicLocation(dir=disks).find_bucket()
    assert bucket is not None
    assert bucket.url == "file:/cold"


def test_somewhere_must_be_named(tmp_path: Path) -> None:
    with pytest.raises(
        InvalidRequest, match=r"a log directory \(--dir, dir=\) nor an object store"
    ):
        TopicLocation()
    with pytest.raises(InvalidRequest, match="does not exist"):
        TopicLocation(dir=tmp_path / "none").find_bucket()


def test_the_mirror_that_a_directory_remembers_is_erased_too(tmp_path: Path) -> None:
    with varve.open(tmp_path / "data", maintain=False) as store:
        store.create_topic("people")
    place = {"format": 1, "url": "file:/cold", "metadata": "object", "mirror": "file:/second"}
    (tmp_path / "data" / "varve-tier.json").write_text(json.dumps(place))
    settings: dict[str, GivenValue] = {"a": "1", "mirror.b": "2"}
    for url in ("", "file:/cold"):
        named = TopicLocation(dir=tmp_path / "data", store=url, settings=settings)
        bucket = named.find_bucket(with_mirror=True)
        assert bucket is not None
        assert (bucket.mirror_url, bucket.mirror_settings) == ("file:/second", (("b", "2"),))
        assert bucket.settings == (("a", "1"),)
        assert bucket.cluster is not None, "that of the directory"
    alone = TopicLocation(dir=tmp_path / "data", settings=settings).find_bucket()
    assert alone is not None
    assert alone.mirror_url is None
