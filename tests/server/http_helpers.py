"""What tests say to a server, in plain HTTP."""

from __future__ import annotations

from typing import Any

import httpx

from brigade.server.serve import Serving

__all__ = ["connected", "held", "take"]


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


def connected(serving: Serving) -> httpx.Client:
    """A client of the API, without the path that all of it is under."""
    return httpx.Client(base_url=f"{serving.address}/v1/queue/", trust_env=False, timeout=50)
