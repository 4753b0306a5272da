"""Pytest fixtures for the servers: import the ones that a test module needs. Processes of one run share a server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from brigade.testing.servers.azurite import azurite, azurite_program
from brigade.testing.servers.s3 import moto, seaweedfs

__all__ = ["azurite_server", "moto_server", "seaweedfs_server"]


@pytest.fixture(scope="session")
def seaweedfs_server(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Iterator[str]:
    """The endpoint of SeaweedFS."""
    with seaweedfs(_folder(tmp_path_factory, worker_id, "seaweedfs")) as endpoint:
        yield endpoint


@pytest.fixture(scope="session")
def moto_server(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Iterator[str]:
    """The endpoint of moto."""
    with moto(_folder(tmp_path_factory, worker_id, "moto")) as endpoint:
        yield endpoint


@pytest.fixture(scope="session")
def azurite_server(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Iterator[str]:
    """The endpoint of Azurite."""
    if azurite_program() is None:
        pytest.skip("azurite is not installed; `make setup` does it where there is npm")
    with azurite(_folder(tmp_path_factory, worker_id, "azurite")) as endpoint:
        yield endpoint


def _folder(factory: pytest.TempPathFactory, worker_id: str, name: str) -> Path:
    """One folder for all processes of a run."""
    base = factory.getbasetemp()
    return (base if worker_id == "master" else base.parent) / name
