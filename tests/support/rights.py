"""Rights that a test gives or takes away."""

from collections.abc import Callable

from varve.broker.request import ConnectionContext, Operation, ResourceType

Right = tuple[Operation, ResourceType, str]


class Rights:
    """Everybody may do what a function allows, and somewhere what it allows for no name."""

    def __init__(
        self,
        is_allowed: Callable[[Operation, ResourceType, str], bool],
        is_allowed_somewhere: Callable[[Operation, ResourceType], bool] | None = None,
    ) -> None:
        self._is_allowed = is_allowed
        self._is_allowed_somewhere = is_allowed_somewhere
        self.asked: list[Right] = []

    def is_allowed(
        self, connection: ConnectionContext, operation: Operation, type: ResourceType, name: str
    ) -> bool:
        self.asked.append((operation, type, name))
        return self._is_allowed(operation, type, name)

    def is_allowed_somewhere(
        self, connection: ConnectionContext, operation: Operation, type: ResourceType
    ) -> bool:
        if self._is_allowed_somewhere is None:
            return self._is_allowed(operation, type, "")
        return self._is_allowed_somewhere(operation, type)


def only(*allowed: Right) -> Rights:
    """Nobody may do anything except what is named."""
    return Rights(
        lambda *right: right in allowed,
        lambda *kind: any(one[:2] == kind for one in allowed),
    )


def all_but(*refused: Right) -> Rights:
    """Everybody may do everything except what is named."""
    return Rights(
        lambda *right: right not in refused,
        lambda *kind: all(one[:2] != kind for one in refused),
    )
