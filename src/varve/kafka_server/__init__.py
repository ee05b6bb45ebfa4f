"""Sockets, frames, TLS, SASL and the life of connections in front of the broker."""

from varve.kafka_server.server import Server
from varve.kafka_server.settings import ServerSettings

__all__ = ["Server", "ServerSettings"]
