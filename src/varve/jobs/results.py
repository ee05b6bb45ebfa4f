"""What every job returns: figures, and what failed without ending the job."""

from abc import ABC, abstractmethod

from varve.foundation.errors import StoreError


class JobIncomplete(StoreError):
    """A job ended, and a part of its work failed; run it again when the cause is mended."""


class JobResult(ABC):
    """The result of a job."""

    __slots__ = ()

    @property
    def failures(self) -> tuple[str, ...]:
        """What failed, a sentence each; nothing for jobs that raise their first error."""
        return ()

    @abstractmethod
    def to_json(self) -> dict[str, object]: ...

    def to_dict(self) -> dict[str, object]:
        """As JSON has it."""
        return self.to_json()

    def raise_for_failures(self) -> None:
        """Raises JobIncomplete where something failed."""
        failures = self.failures
        if failures:
            more = f" (and {len(failures) - 1} more)" if len(failures) > 1 else ""
            raise JobIncomplete(f"{failures[0]}{more}")
