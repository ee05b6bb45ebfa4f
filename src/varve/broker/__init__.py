"""Topics, groups, transactions and a handler per Kafka API: request in, response out, no sockets."""
