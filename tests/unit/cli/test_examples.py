"""Every example of every help runs, on one machine without a network.

Each runs in a directory of its own that has what the examples of all commands take: log
directories, object stores as directories, snapshots, a receipt and a report. Brokers and shape
servers are on loopback. Examples that need Spark are tried with their jobs: tests/spark.
"""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click
import pytest
from click.testing import CliRunner

import varve
from tests.support.forked_commands import VARVE, CommandServers
from tests.support.snapshot_topic import SMALL
from varve.broker.settings import SecuritySettings
from varve.cli.command import VarveCommand
from varve.cli.main import app
from varve.cli.output import Output
from varve.jobs.snapshot.snapshot import take_snapshot
from varve.jobs.table.catalog import CatalogAddress
from varve.jobs.table.definition import TableSettings
from varve.jobs.table.sync import sync_table
from varve.jobs.tasks import LocalRunner
from varve.testing.kafka_kit import KafkaKit

ELSEWHERE: Final = {
    "job compact": "tests/spark",
    "job query": "tests/spark",
    "job verify": "tests/spark",
    "job snapshot": "tests/spark",
    "job table": "tests/spark",
    "job dedup": "tests/spark",
    "job demo": "tests/spark",
    "job due": "tests/spark",
    "job package": "tests/spark, it packs the whole environment",
    "demo": "tests/unit/cli/test_demo.py",
}
"""Commands whose examples other tests run, because they start Spark or take long."""
ENDLESS: Final = ("serve", "shape serve", "shape tail orders --where", "dedup run clicks")
"""Examples that run until a signal."""
NETWORK: Final = ("varve table expire shop.orders --catalog http",)
"""Examples that need a server on another machine."""
SPARK: Final = ("varve job erase",)
"""Examples that start Spark."""
HANDLE: Final = "48203311-1760000000000000"


def _commands(
    group: click.Group = app, path: tuple[str, ...] = ()
) -> Iterator[tuple[str, VarveCommand]]:
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        if isinstance(command, click.Group):
            yield from _commands(command, (*path, name))
        else:
            assert isinstance(command, VarveCommand)
            yield " ".join((*path, name)), command


EXAMPLES: Final = [
    (example, number > 0 and "is_json" in {parameter.name for parameter in command.params})
    for words, command in _commands()
    if words not in ELSEWHERE
    for number, example in enumerate(command.examples)
    if not example.startswith(NETWORK)
]
"""Each example, and whether it is run with --json: all but the first of a command."""


@pytest.fixture(scope="module")
def broker() -> Iterator[str]:
    """A broker with ACLs, of which everybody may do everything."""
    security = SecuritySettings(authorizer_enable=True, super_users="User:ANONYMOUS")
    with KafkaKit(security=security) as kit:
        yield kit.bootstrap


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory that every example gets a copy of."""
    root = tmp_path_factory.mktemp("examples")
    data = root / "data"
    values = [
        (b"customer-%d" % (number % 9), b'{"tenant": "acme", "id": %d, "status": "open"}' % number)
        for number in range(2_000)
    ]
    with varve.open(data, maintain=False) as store:
        tiered = {"remote.storage.enable": True}
        store.create_topic("orders", partitions=1, settings=tiered).append_many(values)
        store.create_topic("visits").append_many(values)
        for name in ("customers", "people"):
            topic = store.create_topic(name, settings={"cleanup.policy": "compact"})
            topic.append_many([*values, (b"4711", b"x")])
        scores = store.create_topic("scores", settings={"cleanup.policy": "compact"})
        scores.append_many([(b"alice", b"3"), (b"bob", b"4"), (bytes(range(3)), b"5")] * 500)
        for partition in store.partitions("orders"):
            store.topic("orders").partition(partition.partition).log.roll()
    _call(root, "tier copy orders -d data --store file:bucket/varve --mirror file:other/varve")
    _call(root, "tier copy orders -d data --roll")
    shutil.copytree(root / "bucket", root / "backup" / "tier-source")
    for name in ("varve", "tier"):
        shutil.copytree(root / "bucket" / "varve", root / "backup" / name, dirs_exist_ok=True)
    _call(root, "dedup run orders --to orders-once --by key --window 10m -d data")
    for place in ("backup/orders", "bucket/orders"):
        take_snapshot(
            "customers",
            str(root / place),
            directories=[str(data)],
            settings=SMALL,
            runner=LocalRunner(),
        )
    sync_table(
        "visits",
        "shop.orders",
        catalog=CatalogAddress(warehouse=str(root / "data.tables")),
        directories=[str(data)],
        address=None,
        settings=TableSettings(),
        runner=LocalRunner(),
    )
    _create_keys(root)
    _call(
        root,
        "job erase people -d data --key 4711 --sign-key private.pem --receipt erased.json "
        "--report compact.json --yes",
    )
    (root / "server.properties").write_text("log.dirs=served\nlisteners=PLAINTEXT://127.0.0.1:0\n")
    (root / "shapes.toml").write_text('[shapes.open]\ntable = "orders"\n')
    (root / "keys.txt").write_text("customer-1\n")
    (root / "password.txt").write_text("secret\n")
    _call(root, "clean scores -d data --roll")
    audited = _call(root, "audit scores:0 -d data --json").splitlines()
    (root / "noted-head").write_text(json.loads(audited[-1])["head"])
    return root


def _create_keys(root: Path) -> None:
    from cryptography.hazmat.primitives import serialization as pem
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(pem.Encoding.PEM, pem.PrivateFormat.PKCS8, pem.NoEncryption())
    (root / "private.pem").write_bytes(private)
    public = key.public_key().public_bytes(pem.Encoding.PEM, pem.PublicFormat.SubjectPublicKeyInfo)
    (root / "public.pem").write_bytes(public)


def _call(root: Path, arguments: str, **environment: str | None) -> str:
    """The output of a command that succeeds in a directory; it answers questions with yes."""
    before = os.getcwd()
    os.chdir(root)
    try:
        result = CliRunner().invoke(app, shlex.split(arguments), input="y\n", env=environment)
    finally:
        os.chdir(before)
    assert result.exit_code == 0, f"varve {arguments}: {result.output}"
    return result.stdout


def _localize(example: str, broker: str) -> str:
    """The example with addresses and places of this machine."""
    for place, here in {
        "kafka:9092": broker,
        "localhost:9092": broker,
        "0.0.0.0:9092": "127.0.0.1:0",
        "0.0.0.0:8080": "127.0.0.1:0",
        "--metrics-port 9404": "--metrics-port 0",
        "s3://bucket/": "file:bucket/",
        "s3://other/": "file:other/",
        "file:/backup/tier": "file:backup/tier",
        "/backup/": "backup/",
        "/var/lib/node_exporter/": "",
        "/var/lib/clicks": "clicks-state",
        "orders:3 -d copy": "orders:0 -d copy",
        "--at 2026-01-31T12:00": "--at 2999-01-31T12:00",
        " --place-set region=eu-west-1": "",
        " --store-set mirror.region=eu-west-1": "",
    }.items():
        example = example.replace(place, here)
    return example


@pytest.fixture(scope="module")
def programs(commands: CommandServers, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the `varve` of shells."""
    directory = tmp_path_factory.mktemp("bin")
    commands.install(directory)
    return directory


@pytest.fixture
def lab(
    prepared: Path,
    tmp_path: Path,
    broker: str,
    commands: CommandServers,
    programs: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Path:
    """A copy of the prepared directory, which is the working directory, and a terminal."""
    root = tmp_path / "lab"
    shutil.copytree(prepared, root)
    location = root / "data" / "varve-tier.json"
    location.write_text(location.read_text().replace(str(prepared), str(root)))
    monkeypatch.chdir(root)
    monkeypatch.setattr(Output, "check_terminal", lambda self, action: None)
    for name in ("VARVE_DIR", "VARVE_COMMAND_CONFIG", "VARVE_TIER_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("VARVE_BOOTSTRAP", broker)
    for name, value in commands.variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    return root


def _prepare_broker(root: Path, example: str) -> None:
    """Topics, groups, ACLs and users of the broker that the example is about."""
    if " create balances" in example:
        _call(root, "topic delete balances --yes") if _has_topic(root, "balances") else None
        return
    for name in ("orders", "balances", "scores", "copies", "clicks"):
        if not _has_topic(root, name):
            _call(root, f"topic create {name} --partitions 4")
            lines = "".join(f"key-{number}={number}\n" for number in range(6_000))
            runner = CliRunner()
            assert runner.invoke(app, ["produce", name, "-K", "="], input=lines).exit_code == 0
    if "group" in example:
        for group in ("audit", "billing"):
            _call(root, f"consume orders --group {group} --limit 1")
    if "acl delete" in example:
        _call(root, "acl add --principal User:alice --operation write --topic orders")
    if "user delete" in example:
        for mechanism in ("scram-sha-256", "scram-sha-512"):
            runner = CliRunner()
            words = ["user", "add", "alice", "--mechanism", mechanism]
            assert runner.invoke(app, words, input="secret\n").exit_code == 0
    if "clicks-once" in example and "dedup run" not in example:
        state = "--state clicks-state"
        _call(root, f"dedup run clicks --to clicks-once --by header:id --window 1h {state}")


def _has_topic(root: Path, name: str) -> bool:
    return f'"{name}"' in _call(root, "topic list --json")


@pytest.fixture(scope="module")
def shape_server(
    tmp_path_factory: pytest.TempPathFactory, commands: CommandServers
) -> Iterator[str]:
    root = tmp_path_factory.mktemp("shapes")
    with varve.open(root / "data", maintain=False) as store:
        topic = store.create_topic("orders")
        topic.append(b'{"tenant": "acme", "id": 1, "status": "open"}', key=b"k")
    words = [*VARVE, "shape", "serve", "-d", "data", "--listen", "127.0.0.1:0"]
    environment = {**os.environ, **commands.variables}
    with subprocess.Popen(
        words, cwd=root, env=environment, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        line = server.stdout.readline()
        url = re.search(r"http://[0-9.]+:[0-9]+", line)
        assert url is not None, line
        try:
            yield url.group()
        finally:
            server.terminate()


@pytest.mark.parametrize(
    ("example", "is_json"),
    [
        # An erasure of several topics runs its tasks on Spark.
        pytest.param(*entry, marks=[pytest.mark.spark] * entry[0].startswith(SPARK))
        for entry in EXAMPLES
    ],
)
def test_an_example_runs(
    example: str, is_json: bool, lab: Path, broker: str, request: pytest.FixtureRequest
) -> None:
    line = _localize(example, broker)
    words = line.removeprefix("varve ")
    if words.startswith("shape ") and not words.startswith("shape serve"):
        url = request.getfixturevalue("shape_server")
        os.environ["VARVE_SHAPE_URL"] = url
        if HANDLE in line:
            line = line.replace(HANDLE, _call(lab, "shape create orders").strip())
    elif " -d " not in line and "-c " not in line:
        _prepare_broker(lab, line)
    if "output forget" in line:
        listed = json.loads(_call(lab, "output list customers -d data --json").splitlines()[0])
        line = re.sub(r"(snapshot|table)-[0-9a-f]{32}", listed["id"], line)
    if words.startswith("topic create orders"):
        _call(lab, "topic delete orders -d data --yes")
    if "tier copy -d data --store" in line:
        shutil.rmtree("data")
        _call(lab, "topic create orders -d data -s remote.storage.enable=true")
    if "tier restore orders -d data" in line:
        shutil.rmtree("data")
    if words.startswith(ENDLESS):
        _run_until_signal(line)
    elif re.search(r"[|<>$]", line.replace("'$1", "")):
        done = subprocess.run(line, shell=True, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
    else:
        arguments = shlex.split(line)[1:]
        if is_json and not {"--json", "--template"} & set(arguments):
            arguments.append("--json")
        result = CliRunner().invoke(app, arguments, input="y\n")
        assert result.exit_code == 0, f"{line}: {result.output} {result.exception!r}"
        if "--json" in arguments:
            assert all("type" in json.loads(text) for text in result.stdout.splitlines())


def _run_until_signal(line: str) -> None:
    """The command runs for three seconds, and SIGINT ends it."""
    with subprocess.Popen(
        [*VARVE, *shlex.split(line)[1:]],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            _, errors = process.communicate(timeout=3)
            pytest.fail(f"{line} ended: {errors}")
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=30)
    assert process.returncode in (0, 130), errors


def test_only_commands_of_spark_and_demos_are_tried_elsewhere() -> None:
    commands = dict(_commands())
    assert ELSEWHERE.keys() <= commands.keys()
    assert len(EXAMPLES) > 80


def test_every_command_but_servers_prints_objects_for_programs() -> None:
    without = {
        words
        for words, command in _commands()
        if "is_json" not in {parameter.name for parameter in command.params}
    }
    assert without == {"serve", "shape serve"}
