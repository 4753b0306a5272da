"""The API against its own description: no request, right or wrong, breaks the server, and no wrong one is taken."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)

from brigade.server.call import Route
from brigade.server.routes import ROUTES
from brigade.server.service import Limits
from served import served


def wrong_data_is_refused(context: Any, response: Any, case: Any) -> Any:
    """The library's check, which doesn't know that what is too long for a URL is refused as such."""
    return None if response.status_code == 431 else negative_data_rejection(context, response, case)


CHECKS: list[Any] = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    wrong_data_is_refused,
]


@pytest.fixture(scope="module")
def api() -> Iterator[Any]:
    with served(f"memory://{uuid.uuid4().hex}", limits=Limits(most_consumers=64, most_wait=0.05)) as serving:
        yield schemathesis.openapi.from_url(f"{serving.address}/openapi.json")


# Streams don't end by themselves; what they take is read and checked like everything else.
ASKED = [route for route in ROUTES if "subscribe" not in route.path and "watch" not in route.path]


@pytest.mark.parametrize("mode", list(GenerationMode))
@pytest.mark.parametrize("route", ASKED, ids=lambda route: f"{route.method} {route.path}")
def test_the_server_does_as_it_says(api: Any, route: Route, mode: GenerationMode) -> None:
    operation = api[route.path][route.method]

    @given(case=operation.as_strategy(generation_mode=mode))
    @settings(
        max_examples=10,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def ask(case: Any) -> None:
        case.call_and_validate(checks=CHECKS, timeout=30)

    with contextlib.suppress(Unsatisfiable):  # what takes nothing can't be asked wrongly
        ask()
