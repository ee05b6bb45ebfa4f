"""A program that uses the whole public API: mypy checks it strictly, nothing runs it."""

from collections.abc import Iterable, Iterator

import varve
import varve.spark as vs
from varve import errors
from varve.object_store import MemoryObjectStore
from varve.testing import CrashMode, FaultyObjectStore, KafkaKit, ObjectFaultPlan, VirtualStore


def write(topic: varve.TopicHandle) -> int:
    """Takes a topic of a store or of a cluster."""
    first: varve.AppendResult = topic.append("3 apples", key="alice", headers={"by": "shop"})
    topic.append(b"\x00", timestamp_ms=first.timestamp + 1, partition=first.partition)
    topic.delete_key("alice")
    records: Iterable[tuple[str, str]] = [("bob", "1"), ("carol", "2")]
    many: varve.BulkAppendResult = topic.append_many(records, codec=varve.Codec.ZSTD)
    topic.append_many([varve.NewRecord(b"k", b"v"), *topic.read(limit=1)])
    return many.record_count + many.end_offsets[topic.partition_for("bob")]


def read(topic: varve.TopicHandle) -> Iterator[bytes | None]:
    record: varve.Record
    for record in topic.read(partition=0, start=1, end=9, isolation="read_committed", limit=5):
        yield record.value
    batch: varve.Batch
    for batch in topic.batches(partition=0):
        print(batch.header.base_offset)
    columns: varve.RecordColumns
    for columns in topic.columns():
        print(columns.offsets.max(), columns.key(0), columns.values_column())
    latest = topic.get("alice")
    if latest is not None:
        yield latest.value
    offsets: varve.PartitionOffsets = topic.offsets(0)
    found = topic.offset_for_time(1_700_000_000_000, partition=0)
    topic.delete_records(offsets.log_start if found is None else found, partition=0)


def keep_a_store() -> None:
    settings = {"cleanup.policy": "compact", "retention.ms": 86_400_000, "preallocate": False}
    with varve.open(["/disk1/data", "/disk2/data"], settings={"flush": "ack"}) as store:
        topic: varve.Topic = store.create_topic("scores", partitions=2, settings=settings)
        write(topic)
        partition: varve.Partition = topic.partition(0)
        print(partition.number, [record.offset for record in partition.read(start=0, end=9)])
        topic.append_batch(b"...", 0)
        topic.flush()
        store.alter_topic("scores", {"retention.ms": None, "segment.bytes": 1_000_000})
        store.add_partitions("scores", 3)
        results: list[varve.CleanResult] = store.clean("scores", roll=True)
        store.explain_key("scores", key="alice")
        store.explain_offset("scores", offset=0, partition=0)
        store.forecast("scores", settings={"retention.ms": 5})
        health: varve.StoreHealth = store.health()
        print(results, health.is_healthy, store.audit(), [one.name for one in store.topics()])
        store.delete_topic("scores")


def keep_a_cluster(bootstrap: str) -> None:
    cluster: varve.Cluster
    with varve.connect(bootstrap, security_protocol="SASL_SSL", socket_timeout_ms=5_000) as cluster:
        topic: varve.ClusterTopic = cluster.create_topic("orders", exist_ok=True)
        write(topic)
        cluster.alter_topic("orders", {"retention.ms": None})
        print(cluster.add_partitions("orders", 9), cluster.given_settings("orders"))
        producer: varve.Producer = cluster.producer("billing")
        with producer.transaction():
            producer.append("3 apples", topic="orders", key="alice")
            producer.append_many([("alice", "3")], topic="totals", partition=0)
        try:
            cluster.delete_topic("orders")
        except errors.NotFound as error:
            print(error)
        except varve.StoreError as error:
            if error.retriable:
                raise


def run_jobs() -> None:
    spark = vs.get_session()
    location = varve.TopicLocation(dir="data")
    vs.register(spark)
    rows = vs.query(spark, location, "orders", start="2026-03-01", end=900, latest=True)
    rows.where("key = 'alice'").show()
    print(vs.compact(spark, location, ["scores"], force=True).to_json())
    vs.snapshot(spark, location, "scores", to="file:scores", at={0: 5}, keep=7)
    catalog = vs.Catalog(warehouse="data.tables")
    vs.table(spark, location, "orders", to="shop.orders", catalog=catalog, format="json")
    vs.read_table(spark, catalog, "shop.orders").show()
    vs.expire_table(catalog, "shop.orders", older_than="30d")
    vs.erase(spark, location, ["customers"], keys=["4711"], dry_run=True)
    print(vs.verify(spark, location).to_json(), vs.open_snapshot("file:scores"))


def run_tests() -> None:
    objects = FaultyObjectStore(MemoryObjectStore(), ObjectFaultPlan(seed=1))
    with VirtualStore(settings={"log.segment.bytes": 10_000}, objects=objects) as kit:
        kit.store.create_topic("orders")
        with kit.crash_at(3) as crash:
            kit.clean_now("orders")
        kit.reopen(CrashMode.KEEP_ALL)
        print(crash.happened, kit.advance(days=1, hours=2), kit.check())
    with KafkaKit() as broker:
        keep_a_cluster(broker.bootstrap)
        broker.restart(crash=True)
