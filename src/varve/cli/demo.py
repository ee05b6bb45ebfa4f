"""`varve demo`: kill a writer, recover, compact a topic, and move another to object storage.

Invariant  nothing is staged but the torn batch: the writer is a process that is killed while it
           writes, and every acknowledged record is looked up afterwards.
"""

import contextlib
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from varve.cli import options
from varve.cli.command import command
from varve.cli.output import Output, draw_bar
from varve.foundation.clock import SystemClock
from varve.foundation.errors import Corrupt, InvalidRequest, Unavailable
from varve.foundation.units import format_bytes

if TYPE_CHECKING:
    from varve.embedded import Store, Topic

ORDERS: Final = "orders"
BALANCES: Final = "balances"

_START_MS: Final = 1_767_225_600_000  # 2026-01-01
_BLOCK_RECORDS: Final = 100
_TORN_BYTES: Final = 777
_TIER_SETTINGS: Final = {
    "remote.storage.enable": True,
    "local.retention.bytes": 100_000,
    "file.delete.delay.ms": 0,
}


directory_option = click.option(
    "-d",
    "--dir",
    "directory",
    type=options.DIRECTORY,
    help="A new directory to use and keep; default a temporary one.",
)


@command("varve demo", "varve demo -d demo-data --records 20000 --json")
@directory_option
@options.number("--records", min=1000, default=60_000, help="How many records to write.")
@options.output
def demo(directory: Path | None, output: Output, records: int) -> None:
    """Write records, kill the writer, recover, compact, and move a topic to object storage.

    A process appends orders and is killed in the middle. The directory is opened again, and every
    acknowledged order is looked up. Then a topic of balances is compacted by account. Finally the
    orders move to object storage, here a directory, and are read from there.
    """
    from varve.embedded import open as open_store

    steps = DemoSteps(output)
    with demo_directory(directory) as root:
        acknowledged = _write_and_kill(root, records, steps)
        _tear(root, steps)
        started = time.monotonic()
        with open_store(root, maintain=False) as store:
            _show_recovery(store, time.monotonic() - started, acknowledged, steps)
            key = _show_compaction(store, records, steps)
            _show_tiering(store, steps)
    kept = directory or Path("demo-data")
    steps.suggest(
        *([] if directory else [f"varve demo -d {kept}"]),
        f"varve consume {ORDERS} -d {kept} -p 0 --from 1000 -n 3 --json",
        f"varve topic describe {ORDERS} -d {kept}",
        f"varve explain {BALANCES} --key {key} -d {kept}",
        f"varve audit -d {kept}",
        f"varve tier status -d {kept}",
        f"varve serve -d {kept}",
    )


# The steps, for this demo and for that of the jobs


class DemoSteps:
    """Numbers the steps, and prints each as a sentence or as an object."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._count = 0

    def show(self, name: str, text: str, **facts: object) -> None:
        self._count += 1
        title = click.style(f"{f'{self._count}. {name}':<14}", bold=True)
        self._output.print_result(f"{title}{text}", "step", step=name.lower(), **facts)

    def draw(self, sizes: Mapping[str, int]) -> None:
        """Bars of bytes, for people."""
        if self._output.is_json:
            return
        width = max(map(len, sizes))
        for name, size in sizes.items():
            bar = draw_bar(size, max([*sizes.values(), 1]), 28)
            self.explain(f"{name:{width}}  {bar:28}  {format_bytes(size)}")

    def explain(self, text: str) -> None:
        """A line below a step, for people."""
        if not self._output.is_json:
            click.echo(f"{'':14}{text}")

    def suggest(self, *commands: str) -> None:
        if not self._output.is_json:
            kept = (
                "; the first command keeps what the others read" if "demo " in commands[0] else ""
            )
            click.secho(f"\nTry next{kept}", bold=True)
            click.echo("\n".join(f"  {command}" for command in commands))


@contextlib.contextmanager
def demo_directory(directory: Path | None) -> Iterator[Path]:
    """A directory that is new or empty and stays, or a temporary one."""
    if directory is None:
        with tempfile.TemporaryDirectory(prefix="varve-demo-") as temporary:
            yield Path(temporary) / "data"
        return
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise InvalidRequest(f"{directory} exists already; name a new or an empty directory")
    yield directory


def move_to_tier(store: "Store", name: str) -> tuple[int, int, int]:
    """Copies all closed segments and removes them here; returns local and remote bytes, segments.

    The topic has a remote tier already.
    """
    for partition in store.partitions(name):
        now_ms = SystemClock().now_ms()
        store.topic(name).partition(partition.partition).log.roll()
        report = store.tier.copy(partition, now_ms)
        if report.error is not None:
            raise Corrupt(f"the demo could not copy {partition}: {report.error}")
        store.tier.expire(partition, now_ms)
    statuses = [store.tier.status(partition) for partition in store.partitions(name)]
    return (
        sum(status.local_bytes for status in statuses),
        sum(status.remote_bytes or 0 for status in statuses),
        sum(status.remote_segments or 0 for status in statuses),
    )


# Orders


def make_order(number: int) -> tuple[bytes, bytes]:
    """Key and value of the order with this number."""
    mixed = (number + 1) * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF
    customer = (mixed >> 29) % 5_000
    value = f'{{"order": {number}, "customer": {customer}, "cents": {100 + mixed % 90_000}}}'
    return b"customer-%d" % customer, value.encode()


def write_orders(directory: str, count: int) -> None:
    """What the process does that is killed: prints how many orders are acknowledged."""
    import varve

    with varve.open(directory) as store:
        topic = store.create_topic(ORDERS, partitions=2, settings={"segment.bytes": 200_000})
        for start in range(0, count, _BLOCK_RECORDS):
            end = min(start + _BLOCK_RECORDS, count)
            orders = (
                (*make_order(number), None, _START_MS + number * 250)
                for number in range(start, end)
            )
            topic.append_many(orders, codec="none")
            print(end, flush=True)


def _write_and_kill(directory: Path, count: int, steps: DemoSteps) -> int:
    """Returns how many orders were acknowledged."""
    steps.show("Write", f"{count:,} orders, keyed by customer, in a process of its own")
    kill_at = int(count * random.uniform(0.45, 0.9))
    acknowledged = 0
    with subprocess.Popen(
        [sys.executable, "-m", "varve.cli.demo", str(directory), str(count)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as writer:
        assert writer.stdout is not None
        assert writer.stderr is not None
        try:
            for line in writer.stdout:
                acknowledged = int(line)
                if acknowledged >= kill_at:
                    writer.kill()
        finally:
            writer.kill()
        errors = writer.stderr.read().strip()
    if acknowledged < kill_at:
        # The last line of a traceback is the class of the error and its text.
        reason = errors.rpartition("\n")[2].partition(": ")[2] or errors[-500:]
        raise Unavailable(f"the process that writes ended by itself: {reason}")
    steps.show(
        "Kill",
        f"process {writer.pid} with SIGKILL after {acknowledged:,} acknowledged orders",
        acknowledged=acknowledged,
    )
    return acknowledged


def _tear(directory: Path, steps: DemoSteps) -> None:
    """Appends half a batch; a kill seldom leaves one, a power loss often."""
    active = max((directory / f"{ORDERS}-0").glob("*.log"))
    half_batch = active.read_bytes()[:_TORN_BYTES]
    with active.open("ab") as file:
        file.write(half_batch)
    steps.show("Tear", f"{len(half_batch)} bytes of half a batch appended, as a power loss leaves")


def _show_recovery(store: "Store", seconds: float, acknowledged: int, steps: DemoSteps) -> None:
    messages = [
        f"{partition}: {message}"
        for partition, found in store.recovered.items()
        for message in found
    ]
    steps.show("Recover", f"opened in {seconds:.2f} s, indexes rebuilt", recovered=messages)
    for message in messages:
        steps.explain(message.replace(f"{store.directories[0].path}/", ""))
    found, lost = find_lost(store.topic(ORDERS), acknowledged)
    verdict = click.style(f"{lost or 'none'} lost", "red" if lost else "green", bold=True)
    text = f"{acknowledged:,} orders acknowledged, {found:,} found: {verdict}"
    steps.show("Compare", text, found=found, lost=lost)
    if lost:
        raise Corrupt(f"{lost} of {acknowledged} acknowledged orders were lost")


def find_lost(topic: "Topic", acknowledged: int) -> tuple[int, int]:
    """The number of records, and of acknowledged orders that are missing or changed."""
    records = [(record.key, record.value) for record in topic.read()]
    found = set(records)
    return len(records), sum(make_order(number) not in found for number in range(acknowledged))


# Balances


def _make_balance(number: int) -> tuple[bytes, bytes | None]:
    """Key and value of an update; one of forty closes its account."""
    mixed = (number + 1) * 0xBF58476D1CE4E5B9 & 0xFFFFFFFFFFFFFFFF
    key = b"account-%d" % ((mixed >> 31) % 2_000)
    return key, None if mixed % 40 == 0 else b'{"cents": %d}' % ((mixed >> 20) % 1_000_000)


def _show_compaction(store: "Store", count: int, steps: DemoSteps) -> str:
    """Returns a key of the compacted topic."""
    topic = store.create_topic(
        BALANCES, settings={"cleanup.policy": "compact", "segment.bytes": 500_000}
    )
    topic.append_many(map(_make_balance, range(count)), codec="none")
    latest = dict(map(_make_balance, range(count)))
    steps.show("Update", f"{count:,} balances of {len(latest):,} accounts, cleanup.policy=compact")
    (cleaned,) = store.clean(BALANCES, roll=True)
    (audited,) = store.audit(BALANCES)
    report = cleaned.compaction
    assert report is not None
    counts = {reason.value: number for reason, number in report.records.items() if number}
    steps.show(
        "Clean",
        f"{count:,} records = {' + '.join(f'{n:,} {reason}' for reason, n in counts.items())}"
        f"{'' if audited.is_clean else ', which does not add up'}",
        records=counts,
        bytes_before=report.bytes_before,
        bytes_after=report.bytes_after,
        is_clean=audited.is_clean,
    )
    steps.draw({"before": report.bytes_before, "after": report.bytes_after})
    found = {record.key: record.value for record in topic.read()}
    lost = [key for key, value in latest.items() if value is not None and found.get(key) != value]
    if lost or not audited.is_clean:
        raise Corrupt(f"compaction of {BALANCES} lost {len(lost)} latest values")
    key = next(key for key, value in latest.items() if value is not None)
    started = time.monotonic()
    record = topic.get(key)
    assert record is not None
    text = (record.value or b"").decode()
    milliseconds = 1000 * (time.monotonic() - started)
    steps.show("Get", f"{key.decode()} is {text}, found in {milliseconds:.1f} ms", key=key.decode())
    return key.decode()


# Object storage


def _show_tiering(store: "Store", steps: DemoSteps) -> None:
    before = list(store.topic(ORDERS).read())
    store.alter_topic(ORDERS, _TIER_SETTINGS)
    local, remote, segments = move_to_tier(store, ORDERS)
    steps.show(
        "Tier",
        f"{segments} closed segments copied to object storage and removed from the local disk",
        local_bytes=local,
        remote_bytes=remote,
    )
    steps.draw({"local disk": local, "object storage": remote})
    after = list(store.topic(ORDERS).read())
    if after != before:
        raise Corrupt(f"topic {ORDERS} reads differently from object storage")
    steps.show("Read", f"{len(after):,} orders from both, the same as before", read=len(after))


if __name__ == "__main__":
    write_orders(sys.argv[1], int(sys.argv[2]))
