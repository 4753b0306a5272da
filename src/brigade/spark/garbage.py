"""Spark's Python workers collect all garbage after each task, for which Python visits every object there is.

With Arrow, pandas and Brigade loaded that takes longer than a small task. Modules are never garbage, so from the first
task on they are left out of it.
"""

from __future__ import annotations

import functools
import gc
import os

__all__ = ["spare_modules"]

_IS_USED_AGAIN = "SPARK_REUSE_WORKER"
"""Spark sets it for workers that take one task after the other."""


@functools.cache
def spare_modules() -> None:
    """Have the collector of such a worker pass over all that is loaded by now. Only the first call does anything."""
    if os.environ.get(_IS_USED_AGAIN):
        gc.freeze()
