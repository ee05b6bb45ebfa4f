"""What is a duplicate in a topic, as its settings tell.

Invariant  who is further ahead of the server's clock than the lateness does not move the stream
           time: a record of the present is never late, whatever the clocks of others say.
"""

from varve.broker.topics import ServedTopic
from varve.commit_log import LogSettings
from varve.dedup.rules import DedupRules, parse_id_source


def find_rules(topic: ServedTopic) -> DedupRules | None:
    """None for a topic that takes every record, as those of the broker do."""
    settings = topic.settings
    return None if topic.is_internal or not settings.varve_dedup_by else make_rules(settings)


def make_rules(settings: LogSettings) -> DedupRules:
    """The rules of settings that name an id."""
    window_ms, lateness_ms = settings.varve_dedup_window_ms, settings.varve_dedup_lateness_ms
    if lateness_ms < 0:
        lateness_ms = window_ms
    return DedupRules(
        by=parse_id_source(settings.varve_dedup_by),
        before_ms=window_ms,
        after_ms=window_ms,
        lateness_ms=lateness_ms,
        max_future_ms=lateness_ms,
    )
