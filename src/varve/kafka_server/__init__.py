"""Sockets, frames, TLS, SASL and the life of connections in front of the broker."""
