"""What was made of a topic, and what is to be erased of it."""
