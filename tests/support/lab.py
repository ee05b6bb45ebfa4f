"""What test fixtures are built from: logs, manifests and tiers on a clock, a disk and a bucket.

Every random choice comes from a seed, and nothing waits.
"""

import random
import threading
from collections.abc import Sequence

from varve.commit_log import LogManager, LogSettings, StoreSettings
from varve.disk import FileSystem
from varve.foundation.clock import Clock
from varve.tiering.tier import Tier


def open_logs(
    fs: FileSystem,
    clock: Clock,
    settings: LogSettings,
    *,
    paths: Sequence[str] = ("/d",),
    seed: int = 1,
    store: StoreSettings | None = None,
) -> LogManager:
    """The logs of these directories; all topics have the same settings."""
    return LogManager(
        paths,
        fs=fs,
        clock=clock,
        random=random.Random(seed),
        settings=store or StoreSettings(),
        topic_settings=lambda topic: settings,
    ).open()


class _NoWait(threading.Event):
    def wait(self, timeout: float | None = None) -> bool:
        return self.is_set()


def let_no_time_pass(tier: Tier) -> Tier:
    """What waits in the tier goes on at once."""
    if not isinstance(tier._stop._event, _NoWait):
        tier._stop._event = _NoWait()
    return tier
