"""Hiding what people who look need not see: a function of the user's own, `module:function`, asked for every value."""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from brigade.errors import ConfigError

__all__ = ["HIDDEN", "Redact", "Redaction", "load_redaction"]

log = logging.getLogger("brigade.server")
Redact = Callable[..., Any]
HIDDEN = "[hidden: the redaction function failed]"


class Redaction:
    """Applies a function to what is shown: `function(value, queue=…, kind=…)` gives the value to show instead.

    `kind` is payload, attributes, result, state or error. Where the function fails nothing is shown.
    """

    def __init__(self, function: Redact | None = None) -> None:
        self._function = function

    def __bool__(self) -> bool:
        return self._function is not None

    def __call__(self, value: Any, *, queue: str, kind: str) -> Any:
        if self._function is None or value is None:
            return value
        try:
            return self._function(value, queue=queue, kind=kind)
        except Exception:
            log.exception("the redaction function failed on a %s of queue %s", kind, queue)
            return HIDDEN


def load_redaction(name: str | None) -> Redaction:
    """The function that `module:function` names."""
    if name is None:
        return Redaction()
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise ConfigError(f"redact is {name!r}; name a function as module:function")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"redact is {name!r}, which cannot be imported: {error}") from None
    if not callable(found):
        raise ConfigError(f"redact is {name!r}, which is not a function")
    return Redaction(found)
