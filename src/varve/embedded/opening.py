"""Opens a store, or makes one."""

import os
import random as random_module
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from varve.disk import FileSystem, RealFileSystem
from varve.embedded.store import Store
from varve.foundation.clock import Clock, SystemClock
from varve.foundation.errors import InvalidRequest
from varve.foundation.settings import GivenValue

if TYPE_CHECKING:
    from varve.object_store import ObjectStore

StrPath = str | os.PathLike[str]


def open(
    paths: StrPath | Sequence[StrPath],
    *,
    settings: Mapping[str, GivenValue] | None = None,
    fs: FileSystem | None = None,
    clock: Clock | None = None,
    random: random_module.Random | None = None,
    maintain: bool = True,
    objects: "ObjectStore | None" = None,
) -> Store:
    """Opens a store, or makes an empty one: a directory, or several for several disks.

    `settings` goes by Kafka's names: those of the store, and as `log.segment.bytes` and the like
    the defaults of its topics. Unless `maintain` is off threads flush and checkpoint, delete what
    is past its retention, compact what is due, and copy topics with `remote.storage.enable` to the
    cold tier at `varve.tier.url`. `fs`, `clock`, `random`, and `objects` in place of that URL, are
    for tests.

    Raises Locked when another process has a directory open.
    """
    texts = [_path_text(path) for path in _listed(paths)]
    store = Store(
        texts,
        settings=settings or {},
        fs=fs or RealFileSystem(),
        clock=clock or SystemClock(),
        random=random or random_module.Random(),
        objects=objects,
    )
    return store.open(maintain=maintain)


def _listed(paths: object) -> list[object]:
    if isinstance(paths, Iterable) and not isinstance(paths, str | bytes | os.PathLike):
        return list(paths)
    return [paths]


def _path_text(path: object) -> str:
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else path
    if not isinstance(text, str) or not text or "\0" in text:
        raise InvalidRequest(f"log directory {path!r:.80} is no path; give text or a pathlib.Path")
    return text.rstrip("/") or "/"
