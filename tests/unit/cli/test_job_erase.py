"""`varve job erase` without Spark: a local topic from the dry run to the verified receipt."""

import json
import re
from pathlib import Path

import pytest
import typer
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from typer.testing import CliRunner, Result

import varve
from varve.cli.erase_input import find_where, parse_deadline, read_field
from varve.cli.job_erase import ask_and_run
from varve.cli.main import app
from varve.foundation.errors import InvalidRequest
from varve.jobs.erase.request import ValueFormat
from varve.jobs.erase.result import ErasureCost, ErasureResult

DAY_MS = 86_400_000


def run(*arguments: str, **env: str) -> Result:
    return CliRunner().invoke(app, ["job", "erase", *arguments], env={"COLUMNS": "200", **env})


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
    assert dry.exit_code == 0, dry.output
    assert "a dry run: nothing was changed" in dry.stdout
    assert read_keys(data).count(b"k1") == 3
    out = tmp_path / "receipt"
    words = ("--sign-key", str(key), "--receipt", str(out), "--deadline", "30", "--id", "first")
    done = run("people", "--dir", data, "--key", "k1", *words, VARVE_SIGN_PASSPHRASE="secret")
    assert done.exit_code == 0, done.output
    assert read_keys(data) == [b"k0", b"k2", b"k3"] * 3
    assert "none found" in done.stdout
    page = (tmp_path / "receipt.html").read_text()
    assert re.search(r"(?<![\w-])k1(?![\w-])", page) is None  # as a word: ids are random letters
    document = json.loads((tmp_path / "receipt.json").read_text())
    assert document["records"] == 3
    assert document["deadline_ms"] - document["asked_ms"] == 30 * DAY_MS
    verify = ("--verify-receipt", str(tmp_path / "receipt.json"), "--public-key", str(public))
    checked = run(*verify)
    assert checked.exit_code == 0, checked.output
    assert "the signature is right; erasure first of people, 3 records" in checked.stdout
    (tmp_path / "receipt.json").write_text(json.dumps({**document, "records": 4}))
    assert run(*verify).exit_code == 1


def test_a_field_is_told_as_json(data: str) -> None:
    done = run("people", "--dir", data, "--field", "email", "--value", "p1@x", "--json")
    assert done.exit_code == 0, done.output
    partition, erasure = map(json.loads, done.stdout.splitlines())
    assert (partition["type"], partition["records"], partition["tier"]) == ("partition", 4, "hot")
    assert erasure["type"] == "erasure"
    assert erasure["receipt"]["request"]["field"]["path"] == "email"
    assert "p1@x" not in done.stdout
    assert len(read_keys(data)) == 8


def test_a_receipt_names_paths_in_full(data: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(data).parent)
    done = run("people", "--dir", "data", "--key", "k1", "--json")
    assert done.exit_code == 0, done.output
    receipt = json.loads(done.stdout.splitlines()[-1])["receipt"]
    assert receipt["directories"] == [data]
    (change,) = receipt["topics"][0]["partitions"][0]["objects"]
    assert change["before"]["key"].startswith(f"{data}/people-0/")


def test_a_receipt_that_cannot_be_written_is_found_out_before(data: str, tmp_path: Path) -> None:
    (tmp_path / "taken.html").mkdir()
    for path in (tmp_path / "none" / "r", tmp_path / "taken"):
        refused = run("people", "--dir", data, "--key", "k1", "--receipt", str(path))
        assert refused.exit_code == 1
        assert "nothing was erased" in refused.stderr
    assert len(read_keys(data)) == 12
    assert (
        run("people", "--dir", data, "--key", "k1", "--receipt", "/no/r", "--dry-run").exit_code
        == 0
    )


def test_a_receipt_that_cannot_be_written_after_all_is_told_with_what_was_done(
    data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("varve.cli.job_erase.check_receipt_path", lambda path: None)
    path = str(tmp_path / "none" / "r")
    failed = run("people", "--dir", data, "--key", "k1", "--id", "it", "--receipt", path)
    assert failed.exit_code == 1
    assert "none found" in failed.stdout
    kept = f"{data}/varve-receipt-it.json"
    assert f"{path}.json: No such file or directory" in failed.stderr
    assert f"its receipt is at {kept}" in failed.stderr
    assert json.loads(Path(kept).read_text())["records"] == 3


def test_a_store_that_is_open_elsewhere_is_named(data: str) -> None:
    with varve.open(data, maintain=False):
        refused = run("people", "--dir", data, "--key", "k1")
    assert refused.exit_code == 1
    assert "stop the process that has it open" in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["people"], "give the keys to erase"),
        (["--key", "k"], "name the topics"),
        (["nobody", "--key", "k"], "neither in the object store nor on the disk"),
        (["people", "--value", "x"], "--value needs --field"),
        (["people", "--field", "a", "--value", "x", "--format", "xml"], "none of json, debezium"),
        (["people", "--key", "k", "--rescan", "no"], "none of full, keys"),
        (["people", "--keys-file", "/nowhere"], "/nowhere: No such file"),
        (["people", "--key", "k", "--sign-key", "/nowhere"], "/nowhere: No such file"),
        (["people", "--key", "hex:x"], "begins with base64: or hex:"),
        (["people", "--key", ""], "--key is empty"),
        (["people", "--field", "email", "--value", ""], "--value is empty"),
        (["people", "--key", "k", "--asked", "2199-01-01"], "is to come"),
        (["people", "--key", "k", "--grace", "soon"], "is not a duration"),
        (["people", "--key", "k", "--deadline", "soon"], "is not a time"),
        (["--verify-receipt", "/nowhere"], "needs --public-key"),
    ],
)
def test_what_cannot_be_is_named_and_changes_nothing(
    data: str, arguments: list[str], message: str
) -> None:
    refused = run(*arguments, "--dir", data)
    assert refused.exit_code == 1
    assert message in refused.stderr
    assert len(read_keys(data)) == 12


def test_on_a_terminal_a_no_erases_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = ErasureResult(
        id="i",
        is_dry_run=True,
        partitions=(),
        outputs=("snapshot s at p",),
        out_of_reach=("a backup",),
        elapsed_ms=1,
        cost=ErasureCost(requests=7, read_bytes=1, cost=0.5, currency="USD", prices="list"),
    )
    calls: list[bool] = []

    def erase(is_dry: bool) -> ErasureResult:
        calls.append(is_dry)
        return shown

    def refuse(*words: object, **named: object) -> None:
        raise typer.Abort

    monkeypatch.setattr(typer, "confirm", refuse)
    with pytest.raises(typer.Abort):
        ask_and_run(erase, dry_run=False, is_asked=True)
    assert calls == [True]
    assert ask_and_run(erase, dry_run=False, is_asked=False) is shown
    assert calls == [True, False]


def test_a_deadline_is_days_or_a_time_in_utc() -> None:
    assert parse_deadline(None, 5) is None
    assert parse_deadline("2", 5) == 2 * DAY_MS + 5
    assert parse_deadline("1970-01-02T00:00:00Z", 5) == DAY_MS
    assert parse_deadline("1970-01-02T00:00:00", 5) == DAY_MS
    assert read_field("a.b", ["x"], None, "debezium").format is ValueFormat.DEBEZIUM  # type: ignore[union-attr]  # it is there


def test_a_disk_of_the_store_that_is_left_out_is_asked_for(tmp_path: Path) -> None:
    disks = [str(tmp_path / "d1"), str(tmp_path / "d2")]
    with varve.open(disks, maintain=False) as store:
        store.create_topic("people", partitions=4).append(key="k1", value="v")
    refused = run("people", "--dir", disks[0], "--key", "k1")
    assert refused.exit_code == 1
    assert "give every directory of the store" in refused.stderr


def test_a_tier_whose_place_is_told_nowhere_is_asked_for(tmp_path: Path) -> None:
    disks = [tmp_path / "d1", tmp_path / "d2"]
    paths = [str(one) for one in disks]
    with varve.open(paths, maintain=False) as store:
        store.create_topic("people", settings={"remote.storage.enable": True})
    words = [word for one in paths for word in ("--dir", one)]
    refused = run("people", *words, "--key", "k1")
    assert refused.exit_code == 1
    assert "no varve-tier.json of the log directories tells" in refused.stderr
    place = {"format": 1, "url": "file:/cold", "metadata": "object"}
    (disks[1] / "varve-tier.json").write_text(json.dumps(place))
    where = find_where("", [], "", paths, None, topics=["people"])
    assert where.address is not None
    assert where.address.url == "file:/cold"


def test_somewhere_must_be_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="--store, or a log directory"):
        find_where("", [], "", [], None)
    with pytest.raises(InvalidRequest, match="does not exist"):
        find_where("", [], "", [str(tmp_path / "none")], None)
