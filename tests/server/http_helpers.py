"""What tests say to a server, in plain HTTP."""

from __future__ import annotations

from typing import Any

import httpx

__all__ = ["held", "take"]


def take(http: httpx.Client, queue: str = "tasks", **more: Any) -> dict[str, Any]:
    """The next message, which must be there or come soon."""
    answer = http.post("dequeue", json={"queue": queue, "wait": 30, **more})
    assert answer.status_code == 200, answer.text
    (message,) = answer.json()["messages"]
    return message


def held(message: dict[str, Any], **more: Any) -> dict[str, Any]:
    """What a settlement has to say of a message."""
    return {
        "queue": message["queue"],
        "id": message["id"],
        "ref": message["ref"],
        "token": message["lease"]["token"],
        **more,
    }
