"""Spark's Python workers collect all garbage after each task, for which Python visits every object there is.

With Arrow, pandas and Brigade loaded that takes longer than a small task. Modules are never garbage, so from the first
task on they are left out of it.
"""

from __future__ import annotations

import functools
import gc

__all__ = ["spare_modules"]


@functools.cache
def spare_modules() -> None:
    """Have the collector pass over all that this process has loaded by now. Only the first call does anything."""
    gc.freeze()
