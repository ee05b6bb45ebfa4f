"""The HTTP API of shapes, on the server of `varve.http`."""
