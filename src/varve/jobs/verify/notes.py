"""What a topic has besides its partitions: notes of outputs, receipts of erasures.

Invariant  reads only.
"""

import json
from collections.abc import Iterator

from varve.commit_log.finding import Severity
from varve.foundation.errors import Corrupt, ObjectNotFound
from varve.jobs.derived_outputs import RemoteOutputRegistry
from varve.jobs.verify.findings import PUT_BACK, VerifyFinding
from varve.object_store import ObjectStore


def verify_notes(
    objects: ObjectStore, cluster: str, topic: str, topic_id: str
) -> Iterator[VerifyFinding]:
    """What cannot be read of them."""
    try:
        RemoteOutputRegistry(objects, cluster).find(topic, topic_id)
    except Corrupt as error:
        key, _, message = str(error).partition(": ")
        yield _corrupt(topic, key, message)
    for entry in objects.list(f"{cluster}/{topic}.{topic_id}/receipt/"):
        if entry.key.endswith(".json"):
            try:
                json.loads(objects.get(entry.key))
            except ObjectNotFound:
                continue  # It went since it was listed.
            except ValueError as error:
                yield _corrupt(topic, entry.key, f"is no JSON: {error}")


def _corrupt(topic: str, key: str, message: str) -> VerifyFinding:
    return VerifyFinding(
        severity=Severity.ERROR,
        rule="note-corrupt",
        where=key,
        message=message,
        remedy=PUT_BACK,
        topic=topic,
    )
