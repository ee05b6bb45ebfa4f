"""Rights that a test takes away."""

from varve.broker.request import ConnectionContext, Operation, ResourceType


class AllBut:
    """Everybody may do everything, except what is named."""

    def __init__(self, *refused: tuple[Operation, ResourceType, str]) -> None:
        self._refused = set(refused)

    def is_allowed(
        self, connection: ConnectionContext, operation: Operation, type: ResourceType, name: str
    ) -> bool:
        return (operation, type, name) not in self._refused

    def is_allowed_somewhere(
        self, connection: ConnectionContext, operation: Operation, type: ResourceType
    ) -> bool:
        return not any(one[:2] == (operation, type) for one in self._refused)
