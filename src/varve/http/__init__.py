"""The HTTP door for apps: one ASGI application with the shape API,
its events, limits and answers."""
