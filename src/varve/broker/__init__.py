"""Topics, groups, transactions; a handler per Kafka API: request in, response out, no sockets."""
