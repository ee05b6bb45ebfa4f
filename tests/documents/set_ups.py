"""What each page needs before its first example, and the examples that cannot run here.

A set-up is shell commands. `{...}` of a placeholder is a text of the page and what stands for it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class SetUp:
    """The state in which a reader comes to a page."""

    commands: str = ""
    placeholders: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    needs_bucket: bool = False
    """Whether `s3://bucket` must exist; a server on loopback has it."""
    prelude: str = ""
    """What each program of the page begins with: names that the page takes as known."""


SET_UPS: dict[str, SetUp] = {
    "docs/how-to/deduplicate.md": SetUp(
        r"""varve topic create orders -d data --set retention.ms=-1
echo '{"key": "o1", "value": "a", "timestamp": 1700000000000}' > records
echo '{"key": null, "value": "b", "timestamp": 1700000001000}' >> records
echo '{"key": "o1", "value": "c", "timestamp": 1700000002000}' >> records
echo '{"key": "o2", "value": "d", "timestamp": 1700000900000}' >> records
varve produce orders -d data --input json < records""",
    ),
    "docs/how-to/restore-a-topic.md": SetUp(
        r"""varve topic create orders -d data --set remote.storage.enable=true
printf 'one\ntwo\nthree\n' | varve produce orders -d data
varve tier copy -d data --store file:bucket --roll""",
    ),
    "docs/how-to/secure-a-server.md": SetUp(
        placeholders={"/var/lib/varve": "data"},
        environment={"VARVE_USER_PASSWORD": "secret"},
    ),
    "docs/how-to/tier-to-a-bucket.md": SetUp(
        placeholders={"s3://bucket/prefix": "file:///srv/bucket"}
    ),
    "docs/reference/metrics.md": SetUp(
        prelude="import prometheus_client, varve\nstore = varve.open('data')\n",
    ),
    "docs/reference/object-stores.md": SetUp(
        needs_bucket=True,
        placeholders={
            "s3://my-bucket": "s3://bucket",
            '"eu-central-1"': '"us-east-1", "allow.http": True',
            '/cold")': '/cold", {"allow.http": True})',
        },
        prelude="from varve.object_store import open_object_store\nopen_tape = None\n",
    ),
    "docs/reference/python.md": SetUp(
        "varve serve -d data &",
        prelude="import varve\n",
    ),
    "docs/reference/shape-protocol.md": SetUp("varve serve -d data &"),
    "docs/how-to/produce-and-consume.md": SetUp(
        environment={"VARVE_GROUP_INITIAL_REBALANCE_DELAY_MS": "0"},
    ),
}
"""By page; a page that is not here needs an empty directory."""

_INSTALLS = "installs packages: the tests run in an environment that has them"
_LONG = "takes minutes; `make soak` runs it"
_FOLLOWS = "follows its input until Ctrl-C"
_OTHER_BROKER = "names a broker of the reader's"

NOT_RUN: dict[str, dict[str, str]] = {
    "docs/tutorial/first-spark-job.md": {
        "python3 -m venv": _INSTALLS,
        ". .venv/bin/activate": _INSTALLS,
        "pip install": _INSTALLS,
        "python -m varve.spark.java": _INSTALLS,
    },
    "docs/tutorial/first-records.md": {
        "python3 -m venv": _INSTALLS,
        ". .venv/bin/activate": _INSTALLS,
        "pip install": _INSTALLS,
    },
    "docs/contributing/soak.md": {"make soak": _LONG, ".venv/bin/python -m": _LONG},
    "docs/how-to/choose-topic-settings.md": {
        "python examples/": "run by tests/unit/examples/test_topic_classes_page.py",
    },
    "docs/how-to/deduplicate.md": {
        "varve dedup run clicks": _FOLLOWS,
        "python examples/": "run by tests/unit/examples/test_resends.py",
    },
    "docs/how-to/compact-a-bucket.md": {
        "": "is on the reader's topic; tests/spark/test_job_compact.py runs the job"
    },
    "docs/how-to/deduplicate-with-spark.md": {
        "": "is on the reader's topic; tests/spark/test_dedup.py runs the job"
    },
    "docs/how-to/erase-a-person.md": {
        "": "is on the reader's topic; tests/spark/test_job_erase.py runs the job"
    },
    "docs/how-to/keep-an-iceberg-table.md": {
        "": "is on the reader's topic; tests/spark/test_table.py runs the job"
    },
    "docs/how-to/query-a-topic.md": {
        "": "is on the reader's topic; tests/spark/test_job_query.py runs the job"
    },
    "docs/how-to/snapshot-a-topic.md": {
        "": "is on the reader's topic; tests/spark/test_job_snapshot.py runs the job"
    },
    "docs/how-to/verify-a-bucket.md": {
        "": "is on the reader's topic; tests/spark/test_job_verify.py runs the job"
    },
    "docs/how-to/read-from-spark.md": {"": _OTHER_BROKER},
    "docs/how-to/read-the-latest-values.md": {"": "is on the reader's bucket"},
    "docs/how-to/run-jobs-on-a-cluster.md": {"": "needs a cluster, a Connect server or Airflow"},
    "docs/how-to/use-spark-jobs.md": {"": "is on the reader's topic; tests/spark runs the jobs"},
    "docs/how-to/write-from-spark.md": {"": "is on the reader's topic; tests/spark runs the sink"},
    "docs/reference/cli.md": {"": "is generated; tests/unit/cli runs the examples of the help"},
    "docs/how-to/feed-shapes.md": {"varve shape serve": "needs Debezium and its database"},
    "docs/how-to/secure-a-server.md": {
        "python -c": "asks for a password on a terminal",
        "kafka-acls": "a tool of Kafka; tests/conformance runs it",
    },
    "docs/reference/object-stores.md": {"store = open_mirrored(": "names a bucket of Google"},
    "docs/reference/formats/receipt.md": {
        "import base64": "needs a signed receipt; tests/unit/jobs/test_receipt.py verifies one",
    },
    "docs/how-to/test-your-program.md": {
        "": "run by tests/unit/testing/test_documented_example.py, by pytest",
    },
    "docs/how-to/produce-and-consume.md": {
        "varve topic list -b kafka.example.com": _OTHER_BROKER,
        "varve consume orders --json -b old": _OTHER_BROKER,
    },
    "README.md": {
        "make run": "sets up the machine; `make run` is run by hand for each release",
    },
}
"""By page, the begin of each example that does not run, and the reason.

The command lines among them are parsed by tests/unit/cli/test_mentioned_commands.py.
"""
