"""Log records as JSON, for machines that read logs."""

from __future__ import annotations

import json
import logging
from typing import Any

from brigade.clock import to_datetime

__all__ = ["JsonFormatter"]


class JsonFormatter(logging.Formatter):
    """One JSON object a line, for any handler: events with their fields, other records with their message.

    The text is ASCII, so nothing in a message can break a line or a terminal.
    """

    def format(self, record: logging.LogRecord) -> str:
        shown: dict[str, Any] = {
            "time": to_datetime(round(record.created * 1000)).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
        }
        parts: Any = getattr(record, "brigade", None)
        if isinstance(parts, dict):
            shown.update(parts)  # pyright: ignore[reportUnknownArgumentType]
        else:
            shown["message"] = record.getMessage()
        if record.exc_info:
            shown["exception"] = self.formatException(record.exc_info)
        elif record.exc_text:
            shown["exception"] = record.exc_text
        if record.stack_info:
            shown["stack"] = self.formatStack(record.stack_info)
        return json.dumps(shown, default=str)
