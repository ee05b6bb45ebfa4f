"""`varve serve` against an Apache Kafka broker: the same clients, bytes, machine and disk."""
