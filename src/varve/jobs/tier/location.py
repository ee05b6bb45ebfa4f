"""Where topics are: log directories, an object store, or both.

Invariant  a location is a value; nothing is opened or created before a job uses it. The object
           store that is named beats the one that log directories remember.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from varve.disk import RealFileSystem
from varve.embedded.store_settings import split_store_settings
from varve.embedded.tier_location import check_object_manifests, recall_location
from varve.foundation.errors import InvalidRequest
from varve.foundation.settings import GivenValue
from varve.foundation.topic_records import check_list
from varve.jobs.tier.bucket import Bucket
from varve.tiering.restore import read_cluster

Path = str | os.PathLike[str]


@dataclass(frozen=True, slots=True, init=False)
class TopicLocation:
    """Log directories, the object store of their remote tier, or both.

    `dir` is a log directory, or a list of those of one store on several disks: they remember their
    object store. `settings` are those of the object store, with the prefix `mirror.` those of its
    mirror. `cluster` selects one if the object store holds several.
    """

    directories: tuple[str, ...]
    store: str
    settings: tuple[tuple[str, GivenValue], ...]
    cluster: str | None
    mirror: str

    def __init__(
        self,
        *,
        dir: Path | Sequence[Path] = (),
        store: str = "",
        settings: Mapping[str, GivenValue] | None = None,
        cluster: str | None = None,
        mirror: str = "",
    ) -> None:
        paths = [dir] if isinstance(dir, str | os.PathLike) else dir
        paths = check_list(paths, str, os.PathLike, what="dir")
        # Executors may run in another directory.
        absolute = dict.fromkeys(os.path.abspath(path) for path in paths)
        object.__setattr__(self, "directories", tuple(absolute))
        object.__setattr__(self, "store", _absolute_url(store))
        object.__setattr__(self, "settings", tuple(sorted((settings or {}).items())))
        object.__setattr__(self, "cluster", cluster)
        object.__setattr__(self, "mirror", _absolute_url(mirror))
        if not self.directories and not store:
            raise InvalidRequest(
                "neither a log directory (--dir, dir=) nor an object store (--store, store=) is "
                "named: name one of them"
            )

    def find_bucket(self, *, with_mirror: bool = False) -> Bucket | None:
        """The object store that is named or that a directory remembers; None without one.

        The cluster is that of the directories, unless one is named. Most jobs leave the mirror
        alone: the server brings it up to date.
        """
        fs = RealFileSystem()
        for path in self.directories:
            if not os.path.isdir(path):
                raise InvalidRequest(
                    f"log directory {path} does not exist: name an existing one (--dir, dir=)"
                )
        remembered = recall_location(fs, self.directories)
        if remembered is not None and not self.store:
            check_object_manifests(remembered, self.directories[0])
        url = self.store or ("" if remembered is None else remembered.url)
        if not url:
            return None
        clusters = [self.cluster, *(read_cluster(fs, path) for path in self.directories)]
        cluster = clusters[0] if remembered is None else next(filter(None, clusters), None)
        first, second = split_store_settings(dict(self.settings))
        mirror = self.mirror or ("" if remembered is None else remembered.mirror)
        if not with_mirror or not mirror:
            return Bucket(_absolute_url(url), tuple(first.items()), cluster)
        return Bucket(
            _absolute_url(url), tuple(first.items()), cluster, mirror, tuple(second.items())
        )

    def get_bucket(self, *, with_mirror: bool = False) -> Bucket:
        """The object store; raises InvalidRequest for directories that have none."""
        bucket = self.find_bucket(with_mirror=with_mirror)
        if bucket is None:
            raise InvalidRequest(
                f"{self.directories[0]} has no object store yet: `varve tier copy` creates one, "
                "and --store (store=) names another"
            )
        return bucket

    def options(self) -> dict[str, str]:
        """The options that locate topics for `spark.read.format("varve")`."""
        bucket = self.find_bucket()
        options = {"directory": ",".join(self.directories)} if self.directories else {}
        if bucket is not None:
            options |= {"url": bucket.url}
            options |= {} if bucket.cluster is None else {"cluster": bucket.cluster}
            options |= {f"store.{name}": str(value) for name, value in bucket.settings}
        return options


def _absolute_url(url: str) -> str:
    scheme, colon, path = url.partition(":")
    if scheme == "file" and colon and not path.startswith("/"):
        return f"file:{os.path.abspath(path)}"
    return url
