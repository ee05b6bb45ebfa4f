"""Names that the shell completes: topics and groups of what the command line names so far.

Invariant  completion never fails, and waits at most a moment: without an answer it offers nothing.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from varve.foundation.errors import StoreError

_ANSWER_SECONDS: Final = 1.0


def list_topics(parameters: Mapping[str, Any]) -> list[str]:
    directories = [Path(directory) for directory in parameters.get("dir") or ()]
    if directories:
        return _topics_in(directories)
    try:
        return sorted(_admin(parameters).list_topics(timeout=_ANSWER_SECONDS).topics)
    except Exception:
        return []


def list_groups(parameters: Mapping[str, Any]) -> list[str]:
    try:
        future = _admin(parameters).list_consumer_groups(request_timeout=_ANSWER_SECONDS)
        return sorted(group.group_id for group in future.result(timeout=_ANSWER_SECONDS).valid)
    except Exception:
        return []


def _topics_in(directories: list[Path]) -> list[str]:
    from varve.disk import RealFileSystem
    from varve.embedded.topic_table import TOPICS_FILE, decode_topics

    names: set[str] = set()
    for directory in directories:
        path = f"{directory}/{TOPICS_FILE}"
        try:
            names |= decode_topics(RealFileSystem().read(path), path).topics.keys()
        except (StoreError, OSError):
            continue
    return sorted(names)


def _admin(parameters: Mapping[str, Any]) -> Any:
    from confluent_kafka.admin import AdminClient

    from varve.brokers.client import BOOTSTRAP_SETTING, DEFAULT_BOOTSTRAP, read_client_file

    file = parameters.get("command_config")
    settings = {
        **(read_client_file(file) if file else {}),
        **dict(parameters.get("client_settings") or ()),
    }
    address = parameters.get("bootstrap") or settings.get(BOOTSTRAP_SETTING) or DEFAULT_BOOTSTRAP
    return AdminClient({**settings, BOOTSTRAP_SETTING: address, "log_level": 0})
