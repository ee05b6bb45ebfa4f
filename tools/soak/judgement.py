"""What is read at the end and on the way, and compared with the model."""

from functools import partial
from pathlib import Path

from tests.support.soak_server import ServedProcess
from tools.soak.chain_check import check_chain
from tools.soak.checks import SequenceCheck, check_group, check_keys, gather
from tools.soak.clients import Way
from tools.soak.crew import Crew, Group
from tools.soak.model import Partition
from tools.soak.tools import check_directory, check_tier
from tools.soak.topics import PARTITIONS, PLAIN, SHORT, STAGES, TIERED, transaction_partitions
from tools.soak.transaction_check import check_transactions


class Judgement:
    """Its findings grow; a finding ends nothing."""

    def __init__(self, crew: Crew, way: Way, directory: Path) -> None:
        self._crew = crew
        self._way = way
        self._directory = directory
        self._looks = {one: check for one, check in self._fresh().items() if one[0] != SHORT}
        self.findings: list[str] = []
        self.figures: dict[str, int | float] = {}

    def _fresh(self) -> dict[Partition, SequenceCheck]:
        return {
            one: SequenceCheck(one, may_begin_late=one[0] == SHORT) for one in self._crew.sequences
        }

    def look(self) -> None:
        """What was acknowledged so far, from where the last look ended."""
        self._advance(self._looks)

    def _advance(self, looks: dict[Partition, SequenceCheck]) -> None:
        self.findings += gather(
            [
                partial(check.advance, self._way.bootstrap, self._crew.sequences[one])
                for one, check in looks.items()
            ]
        )

    def read_all(self) -> None:
        """Everything from the beginning, while the server serves."""
        self.look()
        fresh = self._fresh()
        self._advance(fresh)
        crew, bootstrap = self._crew, self._way.bootstrap
        self.findings += gather([partial(self._check_keys, one) for one in crew.keys])
        self.findings += gather(
            [
                partial(check_transactions, bootstrap, transaction_partitions(), crew.outcomes),
                self._check_chain,
                *(partial(self._check_group, one) for one in crew.groups),
            ]
        )
        self.figures["records read again"] = sum(one.count for one in fresh.values())
        self.figures["records gone by retention"] = sum(one.begins_at for one in fresh.values())
        self.figures["records only in the tier"] = self._count_remote()

    def _check_keys(self, partition: Partition) -> list[str]:
        findings, count = check_keys(self._way.bootstrap, partition, self._crew.keys[partition])
        self._add("records of compacted topics", count)
        return findings

    def _check_chain(self) -> list[str]:
        findings, count = check_chain(self._way.bootstrap, STAGES, PARTITIONS)
        self._add("records at the end of the chain", count)
        return findings

    def _add(self, name: str, count: int) -> None:
        self.figures[name] = self.figures.get(name, 0) + count

    def _check_group(self, group: Group) -> list[str]:
        with self._way.admin() as admin:
            committed = admin.group_offsets(group.name)
            ends = {number: admin.latest((PLAIN, number)) for number in range(PARTITIONS)}
        return check_group(committed, PLAIN, ends, group.model)

    def _count_remote(self) -> int:
        """Records below the first segment that is on the local disk."""
        count = 0
        for number in range(PARTITIONS):
            logs = sorted((self._directory / f"{TIERED}-{number}").glob("*.log"))
            count += int(logs[0].stem) if logs else 0
        return count

    def check_at_rest(self, server: ServedProcess) -> None:
        """The log of the server that has ended, and what it left."""
        self.findings += [f"log of the server: {one}" for one in server.troubles()[:10]]
        self.findings += gather([partial(check_directory, self._directory)])
        self.findings += gather([self._check_tier])

    def _check_tier(self) -> list[str]:
        findings, orphans = check_tier(self._directory)
        self.figures["orphans of crashes, swept"] = orphans
        return findings
