"""The API described in OpenAPI 3.1, from the routes and the types that requests are read with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import msgspec

from brigade._version import __version__
from brigade.server.answers import Answer
from brigade.server.call import Call, Route, answer
from brigade.server.enqueueing import EnqueueQuery
from brigade.server.gate import Over
from brigade.server.service import Service
from brigade.stores.remote.faults import CODES
from brigade.stores.remote.wire import CORRELATION, KEY, Enqueue, Fault

__all__ = ["document", "openapi"]

REF = "#/components/schemas/{name}"
JSON = "application/json"
BYTES = "application/octet-stream"


async def openapi(service: Service, call: Call, wanted: None) -> Answer:
    """This document."""
    from brigade.server.routes import ROUTES

    return answer(document(ROUTES))


def document(routes: Sequence[Route]) -> dict[str, Any]:
    """The routes as an OpenAPI document."""
    bodies = [route.takes for route in routes if route.takes is not None and not route.asks]
    queries = [route.takes for route in routes if route.takes is not None and route.asks]
    answers = [kind for route in routes for kind in _kinds(route)]
    kinds = list(dict.fromkeys([*bodies, *queries, *answers, Enqueue, EnqueueQuery, Fault]))
    found, components = msgspec.json.schema_components(kinds, ref_template=REF)
    schemas = dict(zip(kinds, found, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, schemas, components)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Brigade",
            "version": __version__,
            "description": "A durable job queue over HTTP. Errors have a `code` that doesn't change.",
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(route: Route, schemas: dict[Any, dict[str, Any]], components: dict[str, Any]) -> dict[str, Any]:
    name = route.path.strip("/").removeprefix("v1/").removeprefix("queue/").replace("/", "_")
    made: dict[str, Any] = {
        "operationId": f"{route.method.lower()}_{name}",
        "summary": route.summary,
        "tags": ["queue" if route.path.startswith("/v1/queue") else "server"],
        "parameters": [_header(CORRELATION, "Kept with what is enqueued, and echoed.")],
        "responses": {"200": _response(route, schemas), "default": _fault(schemas)},
    }
    if route.over is not Over.NOTHING:
        made["security"] = [{"token": []}, {}]
        rights = " or ".join(sorted(route.rights)) or "none"
        made["description"] = f"Needs the right: {rights}, on {_ON[route.over]}."
    if route.method == "POST":
        made["parameters"].append(_header(KEY, "Repeated under the same key, a request is carried out once."))
        made["requestBody"] = _body(route, schemas)
    if route.asks and route.takes is not None:
        made["parameters"] += _query(components[schemas[route.takes]["$ref"].rpartition("/")[2]])
    return made


_ON = {
    Over.CALLER: "any queue",
    Over.QUEUE: "the queue that is named",
    Over.SOME: "some queue",
    Over.ALL: "every queue",
}


def _body(route: Route, schemas: dict[Any, dict[str, Any]]) -> dict[str, Any]:
    if route.streams:
        return {"required": True, "content": {BYTES: {"schema": {"type": "string", "format": "binary"}}}}
    if route.takes is not None:
        return {"required": True, "content": {JSON: {"schema": schemas[route.takes]}}}
    parts = {"type": "object", "properties": {"message": schemas[Enqueue], "payload": {"type": "string"}}}
    return {
        "required": True,
        "description": "JSON, or a part with JSON and a part with the payload.",
        "content": {JSON: {"schema": schemas[Enqueue]}, "multipart/form-data": {"schema": parts}},
    }


def _response(route: Route, schemas: dict[Any, dict[str, Any]]) -> dict[str, Any]:
    several = [schemas[kind] for kind in _kinds(route)]
    schema: dict[str, Any] = {"anyOf": several} if len(several) > 1 else several[0] if several else {}
    return {"description": route.summary, "content": {route.content: {"schema": schema}}}


def _kinds(route: Route) -> list[Any]:
    if route.gives is None:
        return []
    return [*cast("tuple[Any, ...]", route.gives)] if isinstance(route.gives, tuple) else [route.gives]


def _fault(schemas: dict[Any, dict[str, Any]]) -> dict[str, Any]:
    codes = ", ".join(sorted({f"{status} {code}" for _, status, code, _ in CODES}))
    return {"description": f"What went wrong: {codes}.", "content": {JSON: {"schema": schemas[Fault]}}}


def _header(name: str, text: str) -> dict[str, Any]:
    return {"name": name, "in": "header", "required": False, "description": text, "schema": {"type": "string"}}


def _query(component: dict[str, Any]) -> list[dict[str, Any]]:
    required = set(component.get("required", ()))
    return [
        {"name": name, "in": "query", "required": name in required, "schema": schema}
        for name, schema in component.get("properties", {}).items()
    ]
