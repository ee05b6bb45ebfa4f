"""`varve job demo`: the changes of a table, from the first write to the erasure of a person.

Invariant  what each step leaves is compared with a dictionary that applied the same changes.
"""

import random
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from varve.cli import options, spark_options
from varve.cli.command import command
from varve.cli.demo import DemoSteps, demo_directory, directory_option, move_to_tier
from varve.cli.output import Output
from varve.cli.spark_options import JobOptions
from varve.foundation.errors import Corrupt
from varve.foundation.units import format_bytes

if TYPE_CHECKING:
    from varve.spark.console import SparkJob

TOPIC: Final = "customers"
TABLE: Final = "shop.customers"
ERASED_KEY: Final = "customer-0000042"

_SETTINGS: Final[dict[str, str | int | bool]] = {
    "cleanup.policy": "compact",
    "segment.bytes": 2 << 20,
    "remote.storage.enable": True,
    "local.retention.bytes": 1,
    "file.delete.delay.ms": 0,
}
_LATE_COUNT: Final = 20_000
"""Changes that are written after the snapshot, for a consumer to catch up with."""
_QUESTION: Final = (
    "SELECT plan, count(*) AS customers, round(sum(cents) / 100) AS euros "
    "FROM customers GROUP BY plan ORDER BY plan"
)


class Customers:
    """Changes of a tenth as many customers; `state` has the latest value of each.

    Every customer is written once, then a few of them far more often than most. Some leave: their
    last record is a tombstone.
    """

    def __init__(self, change_count: int) -> None:
        self.change_count = change_count
        self.count = change_count // 10
        self.state: dict[bytes, bytes] = {}
        self.changes = self._change()

    def _change(self) -> Iterator[tuple[bytes, bytes | None]]:
        chance = random.Random(7)
        for number in range(self.change_count):
            customer = number if number < self.count else int(chance.random() ** 2 * self.count)
            key = b"customer-%07d" % customer
            if chance.random() < 0.002:
                self.state.pop(key, None)
                yield key, None
                continue
            value = b'{"id": %d, "email": "c%d@example.org", "plan": "%s", "cents": %d}' % (
                customer,
                customer,
                chance.choice((b"free", b"plus", b"team")),
                chance.randrange(10_000_000),
            )
            self.state[key] = value
            yield key, value


@command("varve job demo", "varve job demo -d story --records 100000 --json")
@directory_option
@options.number("--records", min=10_000, default=500_000, help="The number of changes.")
@spark_options.spark
@options.output
def job_demo(directory: Path | None, records: int, job_options: JobOptions, output: Output) -> None:
    """Write changes of a table, and take them through every job.

    Changes of customers are written to a compacted topic, copied to object storage (a directory
    beside the first) and compacted there on Spark. A consumer starts from a snapshot, SQL reads an
    Iceberg table, and one person is erased from log, snapshot and table with a signed receipt.
    Finally every object is verified.
    """
    started = time.monotonic()
    steps = DemoSteps(output)
    with demo_directory(directory) as root, job_options.open_job("demo", output) as job:
        customers = Customers(records)
        story = _Story(root.absolute(), customers, steps, job, is_kept=directory is not None)
        story.write()
        story.compact()
        story.snapshot()
        story.make_table()
        story.erase()
        story.verify()
        if not output.is_json:
            click.echo(f"\nAll of it took {time.monotonic() - started:.0f} s.")
    kept = directory or Path("story")
    steps.suggest(
        *([] if directory else [f"varve job demo -d {kept}"]),
        f"varve job query {TOPIC} -d {kept} --latest -n 5",
        f"varve job snapshot {TOPIC} -d {kept} --to {kept}.snapshots",
        f"varve job verify -d {kept}",
        f"varve audit -d {kept}",
        f"varve receipt verify {kept}.receipt.json --public-key {kept}.public.pem",
    )


class _Story:
    """The steps, each of which shows what it did."""

    def __init__(
        self,
        directory: Path,
        customers: Customers,
        steps: DemoSteps,
        job: "SparkJob",
        *,
        is_kept: bool,
    ) -> None:
        from varve.jobs.tier.location import TopicLocation

        self._directory = str(directory)
        self._is_kept = is_kept
        self._customers = customers
        self._steps = steps
        self._job = job
        self._location = TopicLocation(dir=directory)

    def write(self) -> None:
        """Write all but the late changes, and move them to object storage."""
        import varve

        started = time.monotonic()
        customers = self._customers
        written = self._append(
            customers.change_count - min(_LATE_COUNT, customers.change_count // 2)
        )
        self._steps.show(
            "Write",
            f"{written:,} changes of {customers.count:,} customers as JSON, keyed by id "
            f"({_seconds_since(started)})",
            written=written,
        )
        started = time.monotonic()
        with varve.open(self._directory, maintain=False) as store:
            local, remote, segments = move_to_tier(store, TOPIC)
        self._steps.show(
            "Tier",
            f"{format_bytes(remote)} in {segments} segments are in object storage, "
            f"{format_bytes(local)} on the local disk ({_seconds_since(started)})",
            local_bytes=local,
            remote_bytes=remote,
        )

    def compact(self) -> None:
        import varve.spark as vs
        from varve.cleaning.removals.removal import Reason

        result = self._run(lambda **on: vs.compact(None, self._location, [TOPIC], **on))
        failures = [
            part.error or part.held for part in result.partitions if part.error or part.held
        ]
        if failures:
            raise Corrupt(f"compaction of {TOPIC}: {failures[0]}")
        before = sum(part.bytes_before for part in result.partitions)
        after = sum(part.bytes_after for part in result.partitions)
        records = sum(sum(part.records.values()) for part in result.partitions)
        kept = sum(part.records.get(Reason.KEPT, 0) for part in result.partitions)
        self._steps.show(
            "Compact",
            f"in object storage, on Spark: {records:,} records, the latest {kept:,} stay "
            f"({result.elapsed_ms / 1000:.1f} s)",
            bytes_before=before,
            bytes_after=after,
            kept=kept,
        )
        self._steps.draw({"before": before, "after": after})

    def snapshot(self) -> None:
        """Take a snapshot, write the late changes, and start a consumer from both."""
        import varve.spark as vs

        place = f"{self._directory}.snapshots"
        taken = self._run(lambda **on: vs.snapshot(None, self._location, TOPIC, to=place, **on))
        late = self._append(None)
        self._steps.show(
            "Snapshot",
            f"{taken.rows:,} rows as Parquet ({format_bytes(taken.bytes_written)}, "
            f"{taken.elapsed_ms / 1000:.1f} s); then {late:,} more changes are written",
            rows=taken.rows,
        )
        started = time.monotonic()
        snapshot = vs.open_snapshot(place)
        state: dict[bytes, bytes] = {}
        for batch in snapshot.batches(columns=["key", "value"]):
            state.update(zip(batch["key"].to_pylist(), batch["value"].to_pylist(), strict=True))
        replayed = self._replay(state, snapshot.resume_offsets)
        if state != self._customers.state:
            raise Corrupt("a consumer that starts from the snapshot has another state")
        self._steps.show(
            "Bootstrap",
            f"a consumer loads the snapshot and reads {replayed:,} records after it: the state of "
            f"{len(state):,} customers ({_seconds_since(started)})",
            replayed=replayed,
        )

    def make_table(self) -> None:
        """Write the topic to an Iceberg table, and query it with SQL."""
        import varve.spark as vs
        from varve.spark.functions import find_catalog

        result = self._run(
            lambda **on: vs.table(
                None, self._location, TOPIC, to=TABLE, mode="upsert", format="json", **on
            )
        )
        frame = vs.read_table(self._job.spark, find_catalog(self._location, None), TABLE)
        frame.createOrReplaceTempView("customers")
        rows = [row.asDict() for row in self._job.run(self._job.spark.sql(_QUESTION).collect)]
        count = sum(row["customers"] for row in rows)
        if count != len(self._customers.state):
            raise Corrupt(f"the table has {count} rows, not {len(self._customers.state)}")
        self._steps.show(
            "Table",
            f"{TABLE} in Iceberg, one row per customer: {result.records:,} records read, "
            f"{result.files} files ({result.elapsed_ms / 1000:.1f} s)",
            rows=count,
        )
        for row in rows:
            cells = [f"{row['plan']:<6}", f"{row['customers']:>9,} customers"]
            self._steps.explain("  ".join([*cells, f"{row['euros']:>15,.0f} euros"]))

    def erase(self) -> None:
        """Erase a customer from everything, verify the receipt, and look for the key again."""
        import varve.spark as vs
        from varve.jobs.erase.receipt_signature import verify_receipt_file

        private, public = self._create_keys()
        result = self._run(
            lambda **on: vs.erase(
                None,
                self._location,
                [TOPIC],
                keys=[ERASED_KEY],
                sign_key=private,
                receipt=f"{self._directory}.receipt",
                **on,
            )
        )
        verify_receipt_file(f"{self._directory}.receipt.json", public)
        rows = vs.query(self._job.spark, self._location, TOPIC, key=ERASED_KEY)
        left = self._job.run(rows.count)
        if left:
            raise Corrupt(f"{left} records of {ERASED_KEY} were found after the erasure")
        self._steps.show(
            "Erase",
            f"{ERASED_KEY}: {result.records} records, and its rows in the snapshot and the table "
            f"({result.elapsed_ms / 1000:.1f} s); a query for its key finds none",
            records=result.records,
            left=left,
        )
        self._show_file("signed receipt", f"{self._directory}.receipt.html")

    def verify(self) -> None:
        import varve.spark as vs
        from varve.jobs.verify.page import render_page

        result = self._run(lambda **on: vs.verify(None, self._location, [TOPIC], **on))
        page = Path(f"{self._directory}.verify.html")
        page.write_text(render_page(result), encoding="utf-8")
        if result.has_damage:
            raise Corrupt(f"{len(result.findings)} findings, the first: {result.findings[0]}")
        self._steps.show(
            "Verify",
            f"{format_bytes(result.verified_bytes)} of objects, keys and indexes read and "
            f"compared: no damage ({result.elapsed_ms / 1000:.1f} s)",
            verified_bytes=result.verified_bytes,
        )
        self._show_file("page with pictures", str(page))

    def _show_file(self, name: str, path: str) -> None:
        if self._is_kept:
            self._steps.explain(f"{name}: {path}")

    def _run(self, call: Callable[..., Any]) -> Any:
        """A job of `varve.spark` on this command's Spark."""
        return self._job.run(lambda: call(runner=self._job.runner([TOPIC])))

    def _append(self, count: int | None) -> int:
        """Append so many changes, or all that are left; returns their number."""
        import varve

        with varve.open(self._directory, maintain=False) as store:
            topic = store.create_topic(TOPIC, partitions=2, settings=_SETTINGS, exist_ok=True)
            return topic.append_many(islice(self._customers.changes, count)).record_count

    def _replay(self, state: dict[bytes, bytes], offsets: Mapping[int, int]) -> int:
        """Apply the records from these offsets on to a state; returns their number."""
        import varve

        count = 0
        with varve.open(self._directory, maintain=False) as store:
            for partition, offset in offsets.items():
                for record in store.topic(TOPIC).read(partition=partition, start=offset):
                    count += 1
                    assert record.key is not None
                    if record.value is None:
                        state.pop(record.key, None)
                    else:
                        state[record.key] = record.value
        return count

    def _create_keys(self) -> tuple[str, str]:
        """Files of a private key, which signs the receipt, and of its public key."""
        from cryptography.hazmat.primitives import serialization as pem
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        key = Ed25519PrivateKey.generate()
        private, public = f"{self._directory}.private.pem", f"{self._directory}.public.pem"
        Path(private).write_bytes(
            key.private_bytes(pem.Encoding.PEM, pem.PrivateFormat.PKCS8, pem.NoEncryption())
        )
        Path(public).write_bytes(
            key.public_key().public_bytes(pem.Encoding.PEM, pem.PublicFormat.SubjectPublicKeyInfo)
        )
        return private, public


def _seconds_since(started: float) -> str:
    return f"{time.monotonic() - started:.1f} s"
