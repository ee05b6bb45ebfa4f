"""The requests about rights, credentials and quotas."""

from typing import Final

from varve.broker.broker import Handler
from varve.broker.security import acl_handlers, credential_handlers, quota_handlers
from varve.wire import ApiKey

HANDLERS: Final[dict[ApiKey, Handler]] = {
    **acl_handlers.HANDLERS,
    **credential_handlers.HANDLERS,
    **quota_handlers.HANDLERS,
}
