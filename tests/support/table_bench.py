"""A topic beside its cold tier, and tables made of it without Spark."""

from pathlib import Path
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from tests.support.source_topic import NAME, SourceTopic
from varve.foundation.settings import GivenValue
from varve.jobs.table.catalog import CatalogAddress
from varve.jobs.table.definition import BAD, TableSettings
from varve.jobs.table.sync import TableResult, sync_table
from varve.jobs.tasks import LocalRunner, TaskRunner
from varve.jobs.tier.bucket import Bucket, find_cluster, find_topic
from varve.topics.outputs import DerivedOutput, RemoteOutputRegistry

Row = dict[str, Any]
TABLE = "shop.orders"


class TableBench:
    """Tables in a directory with a catalog of SQLite, and the topic they are made of."""

    def __init__(self, root: Path, *, partitions: int = 1, **settings: GivenValue) -> None:
        self.root = root
        self.topic = SourceTopic(root, partitions=partitions, **settings)
        self.address = CatalogAddress(str(root / "tables"))
        self._catalogs: list[Catalog] = []

    def sync(
        self,
        settings: TableSettings | None = None,
        *,
        name: str = TABLE,
        runner: TaskRunner | None = None,
    ) -> TableResult:
        """All that is in the log, hot and cold."""
        self.topic.flush()
        return sync_table(
            NAME,
            name,
            catalog=self.address,
            address=Bucket(self.topic.url),
            directories=[self.topic.kit.path],
            settings=settings,
            runner=runner or LocalRunner(),
            clock=self.topic.kit.clock,
        )

    def table(self, name: str = TABLE) -> Table:
        catalog = self.address.open()
        self._catalogs.append(catalog)
        return catalog.load_table(name)

    def rows(self, name: str = TABLE) -> list[Row]:
        """In order of partitions and offsets."""
        found = self.table(name).scan().to_arrow().to_pylist()
        return sorted(found, key=lambda row: (row["_partition"], row["_offset"]))

    def bad_rows(self, name: str = TABLE) -> list[Row]:
        return self.rows(f"{name}{BAD}")

    def places(self, name: str = TABLE) -> list[tuple[int, int]]:
        return [(row["_partition"], row["_offset"]) for row in self.rows(name)]

    def files(self, name: str = TABLE) -> set[str]:
        """Data files that are there, named by a snapshot or not."""
        folder = self.root / "tables" / name.replace(".", "/") / "data"
        return {str(path) for path in folder.rglob("*") if path.is_file()}

    def named_files(self, name: str = TABLE) -> set[str]:
        files = self.table(name).scan().plan_files()
        return {task.file.file_path.removeprefix("file://") for task in files}

    def marks(self, name: str = TABLE) -> list[str]:
        folder = self.root / "tables" / name.replace(".", "/") / "varve"
        return [path.name for path in folder.iterdir()] if folder.exists() else []

    def outputs(self) -> list[DerivedOutput]:
        address = Bucket(self.topic.url)
        topic = find_topic(address, NAME)
        book = RemoteOutputRegistry(address.objects(), find_cluster(address))
        return book.find(topic.name, topic.topic_id)

    def expire_to(self, offset: int, partition: int = 0) -> None:
        """Moves the log start, as retention or a deletion of records does."""
        self.topic.topic.partition(partition).log.delete_records(offset)

    def close(self) -> None:
        for catalog in self._catalogs:
            close = getattr(catalog, "close", None)
            if close is not None:
                close()
        self.topic.close()
