"""Rights that a test takes away."""

from varve.broker.context import RequestContext
from varve.broker.security.rights import Operation, ResourceType


class AllBut:
    """Everybody may do everything, except what is named."""

    def __init__(self, *refused: tuple[Operation, ResourceType, str]) -> None:
        self._refused = set(refused)

    def is_allowed(
        self, context: RequestContext, operation: Operation, type: ResourceType, name: str
    ) -> bool:
        return (operation, type, name) not in self._refused

    def is_allowed_somewhere(
        self, context: RequestContext, operation: Operation, type: ResourceType
    ) -> bool:
        return not any(one[:2] == (operation, type) for one in self._refused)
