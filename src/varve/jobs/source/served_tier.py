"""Where the cold tier of a server is, asked of the server itself.

Invariant  credentials are never asked for: they are those of who reads.
"""

from dataclasses import replace
from typing import Final

from varve.foundation.errors import StoreDenied, StoreError
from varve.jobs.source.options import SourceOptions
from varve.jobs.tier.bucket import Bucket
from varve.kafka_client.client import open_client

_URL: Final = "varve.tier.url"
_METADATA: Final = "varve.tier.metadata"
_MANIFESTS: Final = "object"


def learn_tier(options: SourceOptions) -> SourceOptions:
    """The options with the address of the server's cold tier, where it names one to be read.

    A server without one, or that keeps no manifests there, is asked for everything.
    """
    if options.server is None or options.is_through_server:
        return options
    client = open_client(options.server)
    cluster = options.cluster or client.topic(options.topic).cluster_id
    if options.address is not None:
        return replace(options, address=replace(options.address, cluster=cluster))
    try:
        told = client.broker_settings(_URL, _METADATA)
    except StoreDenied as error:
        raise StoreDenied(
            f"{error}: it was asked where its cold tier is, for which one needs DescribeConfigs on "
            "the cluster; give option url, or throughServer=true"
        ) from error
    if _URL not in told or told.get(_METADATA, _MANIFESTS) != _MANIFESTS:
        return options
    address = Bucket(told[_URL], options.tier_settings, cluster)
    try:
        address.objects()
    except StoreError as error:
        raise type(error)(
            f"{error}. {options.server.name} says that its cold tier is there: name it as it is "
            "called from here with option url, give its credentials, or set throughServer=true"
        ) from error
    return replace(options, address=address)
