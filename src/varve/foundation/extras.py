"""The packages of the extra `spark`, and what to say where one is missing."""

from typing import Final

_SPARK_PACKAGES: Final = ("fastavro", "pandas", "pyarrow", "pyiceberg", "pyspark")


def describe_missing_extra(error: ModuleNotFoundError) -> str | None:
    """The remedy for a package that an extra installs; None for any other module."""
    package = (error.name or "").partition(".")[0]
    if package not in _SPARK_PACKAGES:
        return None
    return f"{package} is not installed: run `pip install '.[spark]'` in the clone of varve"
