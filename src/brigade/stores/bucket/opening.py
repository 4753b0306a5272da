"""Bucket stores from URLs."""

from __future__ import annotations

from typing import Any

from brigade.errors import ConfigError
from brigade.stores.bucket.store import BucketStore

__all__ = ["open_cloud", "open_file", "open_memory", "open_sqlite"]


def open_memory(_scheme: str, place: str, _options: dict[str, Any]) -> BucketStore:
    from brigade.blobs.memory import MemoryBlobs

    return BucketStore(MemoryBlobs(place))


def open_file(_scheme: str, place: str, options: dict[str, Any]) -> BucketStore:
    from brigade.blobs.disk import DiskBlobs

    if not place:
        raise ConfigError("file:// needs a directory: write file://./jobs or file:///var/lib/jobs")
    return BucketStore(DiskBlobs(place, **options))


def open_sqlite(_scheme: str, place: str, options: dict[str, Any]) -> BucketStore:
    from brigade.blobs.sqlite import SqliteBlobs

    if not place:
        raise ConfigError("sqlite:// needs a file: write sqlite://./jobs.db or sqlite:///var/lib/jobs.db")
    return BucketStore(SqliteBlobs(place, **options))


def open_cloud(scheme: str, place: str, options: dict[str, Any]) -> BucketStore:
    from brigade.blobs.cloud import CloudBlobs
    from brigade.blobs.cloud_connect import connect_bucket

    paces = {name: options.pop(name, None) for name in ("listing_ttl", "poll_interval")}
    return BucketStore(CloudBlobs(connect_bucket(scheme, place, options), **paces))
