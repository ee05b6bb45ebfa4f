"""How tasks come to executors, and what is told of them."""
