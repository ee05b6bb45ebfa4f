"""Sockets in front of the broker: frames, TLS, SASL, connections and their limits."""

from varve.kafka_server.server import Server
from varve.kafka_server.settings import ServerSettings

__all__ = ["Server", "ServerSettings"]
