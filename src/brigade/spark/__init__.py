"""Brigade on Spark: `format("brigade")`, and what else the pipeline is made of. Needs `bucket-brigade[spark]`."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from brigade.spark.fleet import run
    from brigade.spark.outcomes import settle
    from brigade.spark.session import local_session

__all__ = ["local_session", "run", "settle"]

_HOMES = {"local_session": "session", "run": "fleet", "settle": "outcomes"}


def __getattr__(name: str) -> Any:
    """Whoever only starts Spark pays for nothing else."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'brigade.spark' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"brigade.spark.{home}"), name)
