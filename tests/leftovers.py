"""What a test may leave behind: no open socket, and of a process that was killed no line that was cut short."""

from __future__ import annotations

import contextlib
import gc
import warnings
from collections.abc import Iterator
from typing import IO

__all__ = ["nothing_left_open", "whole_lines"]


@contextlib.contextmanager
def nothing_left_open() -> Iterator[None]:
    """Whatever warns of something that was not closed, or of anything else, fails the test."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        yield
        gc.collect()
    assert [str(one.message) for one in warned] == []


def whole_lines(stream: IO[str]) -> Iterator[str]:
    """The lines of a process as they come. One that a kill cut short says nothing."""
    return (line[:-1] for line in iter(stream.readline, "") if line.endswith("\n"))
