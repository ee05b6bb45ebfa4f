"""What a command of `varve job` refuses costs no start of Spark."""

from pathlib import Path

import pytest
from click.testing import CliRunner

import varve
from varve.cli.main import app

DEDUP = ("--by", "key", "--window", "1m", "--checkpoint", "c")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("before") / "data"
    tiered = {"remote.storage.enable": "true", "cleanup.policy": "compact"}
    with varve.open(path, maintain=False) as store:
        store.create_topic("orders", settings=tiered).append(key="k", value="v")
    assert CliRunner().invoke(app, ["tier", "copy", "-d", str(path), "--roll"]).exit_code == 0
    return str(path)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("compact", "nope"), "no topic 'nope'"),
        (("compact", "-s", "no.such=1"), "no.such"),
        (("verify", "nope"), "no topic 'nope'"),
        (("snapshot", "nope", "--to", "{tmp}/s"), "nope"),
        (("snapshot", "orders", "--to", "{data}/s"), "overlap"),
        (("snapshot", "orders", "--to", "{tmp}/s", "--at", "x"), "is not a position"),
        (("table", "nope", "--to", "a.b"), "nope"),
        (("table", "orders", "--to", "no-namespace"), "no-namespace"),
        (("table", "orders", "--to", "a.b", "--format", "json", "--schema", "/no"), "/no"),
        (("erase", "nope", "--key", "k", "--yes"), "nope"),
        (("erase", "orders", "--yes"), "give the keys"),
        (("erase", "orders", "--key", "k", "--deadline", "30", "--yes"), "has no unit"),
        (("erase", "orders", "--key", "k", "--sign-key", "/no.pem", "--yes"), "/no.pem"),
        (("erase", "orders", "--key", "k", "--receipt", "/no/r", "--yes"), "/no/r"),
        (("erase", "orders", "--key", "k", "--finish", "--yes"), "--id"),
        (("query", "nope"), "nope"),
        (("query", "orders", "--from", "x"), "is not a position"),
        (("query", "orders", "--option", "no.such=1"), "no.such"),
        (("dedup", "nope", "--to", "once", *DEDUP), "nope"),
        (("dedup", "orders", "--to", "table:x", *DEDUP), "'x'"),
        (("due", "--run", "-s", "no.such=1"), "no.such"),
    ],
)
def test_a_wrong_argument_starts_no_session(
    data: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    message: str,
) -> None:
    monkeypatch.setattr("varve.spark.console._start", lambda *_: pytest.fail("Spark was started"))
    monkeypatch.chdir(tmp_path)
    arguments = [word.format(tmp=tmp_path, data=data) for word in words]
    outcome = CliRunner().invoke(app, ["job", *arguments, "-d", data], env={"COLUMNS": "200"})
    assert outcome.exit_code in (1, 2), outcome.output
    assert message in outcome.stderr
    assert "Traceback" not in outcome.stderr
