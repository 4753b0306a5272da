"""Tests on real Spark. They share one session, so one Java, and one process of pytest runs them all."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from brigade.errors import ConfigError
from brigade.spark.java import prepare_java
from brigade.spark.session import local_session
from brigade.testing.servers.fixtures import seaweedfs_server
from brigade.testing.servers.s3 import s3_url
from postgres_server import postgres, postgres_url
from served import served

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["postgres", "postgres_url", "seaweedfs_server"]
HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give these tests time: Java starts slowly."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.timeout(600))
            item.add_marker(pytest.mark.filterwarnings("ignore::DeprecationWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))


@pytest.fixture(scope="session")
def java() -> Path:
    """The Java that Spark runs on here."""
    try:
        return prepare_java()
    except ConfigError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def spark(java: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The one session of all tests: two cores, like the smallest machine that runs them."""
    warehouse = tmp_path_factory.mktemp("warehouse")
    settings = {
        "spark.sql.warehouse.dir": warehouse.as_uri(),
        "spark.driver.memory": "1g",
        "spark.local.dir": str(tmp_path_factory.mktemp("spark-local")),
    }
    os.environ.pop("SPARK_LOCAL_DIRS", None)
    session = local_session("brigade-tests", cores=2, settings=settings)
    yield session
    session.stop()


@pytest.fixture(params=["file", "s3", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A store of each kind that Spark works on; `sqlite`, and `http`, a server, for tests that ask for them."""
    if request.param == "s3":
        yield s3_url(request.getfixturevalue("seaweedfs_server"), f"spark/{uuid.uuid4().hex}")
    elif request.param == "postgres":
        yield request.getfixturevalue("postgres_url")
    elif request.param == "sqlite":
        yield f"sqlite://{tmp_path}/store.db?fsync=off"
    elif request.param == "http":
        with served(f"file://{tmp_path}/served?fsync=off") as serving:
            yield serving.address
    else:
        yield f"file://{tmp_path}/store?fsync=off"


@pytest.fixture
def queue() -> str:
    """A queue name that nobody has used."""
    return f"q-{uuid.uuid4().hex[:12]}"
