"""However a job fails on Spark: one sentence, the path of Spark's log, and never a stack."""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]  # ships no types
import pytest
from pyspark.sql import DataFrame

import varve
from tests.support.s3_server import BUCKET, s3_server
from tests.support.spark_session import spark as spark
from varve.foundation.errors import (
    Corrupt,
    InvalidRequest,
    NotFound,
    StoreDenied,
    StoreError,
    StoreUnavailable,
)
from varve.jobs.tier.location import TopicLocation
from varve.spark.console import SparkJob, SparkOptions, open_job
from varve.spark.errors import JobFailed

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore")]

TOPIC = "orders"
Batches = Iterator[pa.RecordBatch]


class Failing:
    """A topic in a log directory and in a bucket, and ways to fail when Spark reads it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.directory = root / "data"
        self.bucket = root / "bucket"
        self.bucket.mkdir(parents=True)
        settings = {"varve.tier.url": self.bucket.as_uri()}
        with varve.open(self.directory, settings=settings, maintain=False) as store:
            topic = store.create_topic(TOPIC, settings={"remote.storage.enable": True})
            for number in range(20):
                topic.append(key=f"k{number}", value=f"v{number}")
            log = topic.partition(0).log
            log.roll()
            assert store.tier is not None
            assert store.tier.copy(log.topic_partition, 1 << 50).error is None

    def read(self, job: SparkJob, **options: str) -> DataFrame:
        reader = job.spark.read.format("varve")
        return reader.options(
            **{"directory": str(self.directory), "topic": TOPIC, **options}
        ).load()

    def run_on_rows(self, job: SparkJob, act: Callable[[], object]) -> None:
        """Lets a function of the user fail in the Python worker."""

        def fail(batches: Batches) -> Batches:
            for batch in batches:
                act()
                yield batch

        frame = self.read(job)
        frame.mapInArrow(fail, frame.schema).collect()

    # Ways to fail

    def raise_in_function(self, job: SparkJob) -> None:
        def act() -> None:
            raise ValueError("the price is negative")

        self.run_on_rows(job, act)

    def raise_own_class(self, job: SparkJob) -> None:
        class Odd(Exception):
            pass

        def act() -> None:
            raise Odd("no such currency")

        self.run_on_rows(job, act)

    def exhaust_memory(self, job: SparkJob) -> None:
        def act() -> None:
            raise MemoryError

        self.run_on_rows(job, act)

    def kill_worker(self, job: SparkJob) -> None:
        self.run_on_rows(job, lambda: os.kill(os.getpid(), signal.SIGKILL))

    def raise_in_sql(self, job: SparkJob) -> None:
        self.read(job).createOrReplaceTempView("records")
        job.spark.sql("SELECT raise_error('a wrong row') FROM records").collect()

    def raise_in_stream(self, job: SparkJob) -> None:
        def act(rows: DataFrame, batch_id: int) -> None:
            raise ValueError(f"batch {batch_id} is refused")

        options = {"directory": str(self.directory), "topic": TOPIC}
        rows = job.spark.readStream.format("varve").options(**options).load()
        writer = rows.writeStream.foreachBatch(act).trigger(availableNow=True)
        writer.option(
            "checkpointLocation", str(self.root / "checkpoint")
        ).start().awaitTermination()

    def fail_in_task(self, job: SparkJob) -> None:
        job.runner([TOPIC]).run("count", [WrongTask()])

    def give_unknown_option(self, job: SparkJob) -> None:
        self.read(job, startingOfset="3")

    def name_missing_column(self, job: SparkJob) -> None:
        self.read(job).select("price")

    def name_missing_bucket(self, job: SparkJob) -> None:
        location = TopicLocation(store=(self.root / "no-bucket").as_uri())
        job.spark.read.format("varve").options(**location.options(), topic=TOPIC).load().collect()

    def damage_object(self, job: SparkJob) -> None:
        (log,) = [path for path in self.bucket.rglob("log") if path.is_file()]
        data = bytearray(log.read_bytes())
        data[-1] ^= 1
        log.write_bytes(data)
        location = TopicLocation(store=self.bucket.as_uri())
        job.spark.read.format("varve").options(**location.options(), topic=TOPIC).load().collect()

    def be_refused_by_s3(self, job: SparkJob) -> None:
        with s3_server() as server:
            given = {**server.settings, "access.key.id": "somebody", "conditional.put.check": False}
            settings = {name: str(value).lower() for name, value in given.items()}
            location = TopicLocation(store=f"s3://{BUCKET}/varve", settings=settings)
            reader = job.spark.read.format("varve").options(**location.options(), topic=TOPIC)
            reader.load().collect()

    def delete_topic_while_it_runs(self, job: SparkJob) -> None:
        planned = self.read(job).rdd
        assert planned.getNumPartitions()
        shutil.rmtree(self.directory)
        planned.collect()

    def write_over_files(self, job: SparkJob) -> None:
        self.read(job).select("key").write.mode("error").parquet(str(self.root))


class WrongTask:
    """A task with a bug."""

    read_bytes = 1 << 40

    def run(self, shared: object) -> int:
        return 1 // 0


@pytest.mark.parametrize(
    ("way", "kind", "sentence"),
    [
        (Failing.raise_in_function, JobFailed, "ValueError: the price is negative"),
        (Failing.raise_own_class, JobFailed, "Odd: no such currency"),
        (Failing.exhaust_memory, JobFailed, "ran out of memory .*spark.executor.memory"),
        (Failing.kill_worker, JobFailed, "was killed .*spark.executor.memory"),
        (Failing.raise_in_sql, JobFailed, "a wrong row"),
        (Failing.raise_in_stream, JobFailed, "ValueError: batch 0 is refused"),
        (Failing.fail_in_task, JobFailed, "ZeroDivisionError: "),
        (Failing.give_unknown_option, InvalidRequest, "did you mean startingOffset"),
        (Failing.name_missing_column, InvalidRequest, "`price` cannot be resolved"),
        (Failing.name_missing_bucket, StoreUnavailable, "no-bucket is missing"),
        (Failing.damage_object, Corrupt, "fsck"),
        (Failing.be_refused_by_s3, StoreDenied, "(?i)access"),
        (Failing.delete_topic_while_it_runs, NotFound, "is not there: the topic was deleted"),
        (Failing.write_over_files, InvalidRequest, "already exists"),
    ],
)
@pytest.mark.usefixtures("spark")
def test_a_failure_is_one_sentence_and_the_path_of_the_log(
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    way: Callable[[Failing, SparkJob], None],
    kind: type[StoreError],
    sentence: str,
) -> None:
    failing = Failing(tmp_path / "failing")
    capfd.readouterr()
    with pytest.raises(kind, match=sentence) as raised, open_job("query", SparkOptions()) as job:
        job.run(lambda: way(failing, job), is_shown=False)
    message, _, log = str(raised.value).partition("; Spark's log is ")
    assert "\n" not in message
    assert not re.search(r"Traceback|\bat (org|java|scala)\.|org\.apache|java\.", message)
    assert log.endswith(".log")
    os.unlink(log)
    assert "Traceback" not in capfd.readouterr().err


def run_query(directory: Path, *arguments: str, **environment: str) -> str:
    """What a query of a process of its own prints; it must fail."""
    command = [sys.executable, "-m", "varve", "job", "query", TOPIC, "-d", str(directory)]
    done = subprocess.run(
        [*command, *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
    return done.stderr


def test_java_without_memory_says_so(tmp_path: Path) -> None:
    failing = Failing(tmp_path)
    line = run_query(failing.directory, "--conf", "spark.driver.memory=1k")
    assert "Spark's Java process ended: Too small maximum heap" in line
    assert "Spark's log is " in line


def test_a_wrong_java_home_names_the_remedy(tmp_path: Path) -> None:
    failing = Failing(tmp_path)
    program = tmp_path / "jdk" / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\nexit 3\n")
    program.chmod(0o755)
    script = "from varve.spark import java; java.HOME_PATTERNS = (); "
    script += "from varve.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", script, "job", "query", TOPIC, "-d", str(failing.directory)],
        env={**os.environ, "JAVA_HOME": str(tmp_path / "jdk"), "PATH": str(program.parent)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    (line,) = done.stderr.splitlines()
    assert "Spark needs Java 17 or newer, and there is none by JAVA_HOME or PATH" in line
    assert f"(JAVA_HOME is {tmp_path / 'jdk'})" in line
    assert "set JAVA_HOME" in line
