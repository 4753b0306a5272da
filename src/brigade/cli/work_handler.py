"""Finds the function that `module:function` names, and says what is missing where there is none."""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

__all__ = ["find_handler"]


def find_handler(place: str) -> Callable[..., Any]:
    """The function at `module:function` or `module:object.method`; modules are looked for here first."""
    module_name, _, path = place.partition(":")
    if not module_name or not path:
        raise click.UsageError(f"the handler is {place!r}; write it as module:function, such as tasks:handle")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    found: Any = _import(module_name, here)
    for part in path.split("."):
        if not hasattr(found, part):
            raise click.UsageError(f"module {module_name!r} has no {path!r}; it has {_functions(found)}")
        found = getattr(found, part)
    if not callable(found):
        raise click.UsageError(f"{place!r} is {type(found).__name__}, not a function of a message")
    return found


def _import(name: str, here: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or name
        if name == missing or name.startswith(f"{missing}."):
            raise click.UsageError(
                f"there is no module {missing!r} in {here} or among the installed ones; "
                "start this where it can be imported, or set PYTHONPATH"
            ) from None
        raise click.UsageError(f"module {name!r} needs {missing!r}, which is not installed here") from None
    except (Exception, SystemExit) as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        raise click.UsageError(
            f"module {name!r} can't be imported: {type(error).__name__}: {error} ({last.filename}, line {last.lineno})"
        ) from None


def _functions(found: Any) -> str:
    """The names that could have been meant."""
    module = getattr(found, "__name__", None)
    known: dict[str, Any] = getattr(found, "__dict__", {})
    own = [
        name
        for name, value in known.items()
        if callable(value) and not name.startswith("_") and getattr(value, "__module__", None) == module
    ]
    return ", ".join(own[:10]) or "no functions"
