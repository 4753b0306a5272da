"""A user's handler: whether it is async, and whether it wants a context."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from brigade.errors import ConfigError

__all__ = ["Handler"]


class Handler:
    """A function of a message, or of a message and a context. Picklable where the function is."""

    def __init__(self, function: Callable[..., Any]) -> None:
        if not callable(function):
            raise ConfigError(f"the handler must be a function of a message, not {type(function).__name__}")
        if isinstance(function, type):
            raise ConfigError(f"the handler is the class {function.__name__}; pass an instance or a function")
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise ConfigError(f"the handler {function.__qualname__} is a generator; have it return instead of yield")
        self.function = function
        self.is_async = _is_async(function)
        self.wants_context = _wants_context(function)

    @property
    def name(self) -> str:
        return getattr(self.function, "__qualname__", type(self.function).__name__)

    def __call__(self, message: Any, context: Any) -> Any:
        return self.function(message, context) if self.wants_context else self.function(message)


def _is_async(function: Callable[..., Any]) -> bool:
    while hasattr(function, "func"):
        function = function.func  # pyright: ignore[reportFunctionMemberAccess]
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004
    )


def _wants_context(function: Callable[..., Any]) -> bool:
    """Whether it takes two positional arguments."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return False
    try:
        signature.bind(None)
    except TypeError:
        try:
            signature.bind(None, None)
        except TypeError:
            name = getattr(function, "__qualname__", repr(function))
            raise ConfigError(
                f"the handler {name}{signature} must take a message, or a message and a context"
            ) from None
        return True
    positional = [
        one
        for one in signature.parameters.values()
        if one.kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    ]
    return len(positional) > 1 and positional[1].name == "context"
