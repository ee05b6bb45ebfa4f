"""Kafka's APIs without sockets: produce, fetch, groups, transactions, administration, security."""
