"""What a handler raises to end the connection of its client."""


class CloseConnection(Exception):
    """Raised by a handler whose response cannot carry an error; the server closes it."""
