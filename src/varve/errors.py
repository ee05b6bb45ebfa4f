"""The errors that varve raises, each a `StoreError`, named by what the caller does next."""

from varve.foundation.errors import *  # noqa: F403  the classes are listed where they are defined
