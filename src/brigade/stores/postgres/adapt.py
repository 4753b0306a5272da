"""How Python values go to the server: whole numbers always as bigint, so that a statement is prepared once."""

from __future__ import annotations

from typing import Any

from psycopg.abc import AdaptContext
from psycopg.types.numeric import Int8BinaryDumper, Int8Dumper

__all__ = ["adapt"]


def adapt(context: AdaptContext) -> None:
    """Set up a connection or a cursor."""
    adapters: Any = context.adapters
    adapters.register_dumper(int, Int8Dumper)
    adapters.register_dumper(int, Int8BinaryDumper)
