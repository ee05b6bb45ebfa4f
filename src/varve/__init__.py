"""varve: a log store that speaks Kafka's bytes."""
