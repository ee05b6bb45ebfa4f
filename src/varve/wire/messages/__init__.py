"""Declarations of Kafka's messages, one module for each area of the protocol."""
