"""varve: a log store that speaks Kafka's bytes."""

__version__ = "0.1.0"
