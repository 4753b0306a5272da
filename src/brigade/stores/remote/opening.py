"""Remote stores from URLs. The HTTP client is imported only here and behind here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from brigade.errors import ConfigError
from brigade.stores.remote.credentials import tls_of, token_of

if TYPE_CHECKING:
    from brigade.stores.remote.store import RemoteStore

__all__ = ["open_remote"]


def open_remote(scheme: str, place: str, options: dict[str, Any]) -> RemoteStore:
    try:
        parts = urlsplit(f"{scheme}://{place}")
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise ConfigError(f"{scheme}://{place} is not a server's URL: {error}; write http://host:port") from None
    if not host:
        raise ConfigError(f"{scheme}:// needs a server: write {scheme}://host:port")
    if parts.username is not None or parts.password is not None:
        raise ConfigError("a server's URL takes no user and password; use the option token")
    try:
        from brigade.stores.remote.store import RemoteStore
    except ModuleNotFoundError as error:
        if error.name != "httpx":
            raise
        raise ConfigError(
            "http:// needs httpx, which is not installed: pip install 'bucket-brigade[server]'"
        ) from error
    address = f"{scheme}://{parts.netloc}{parts.path.rstrip('/')}"
    return RemoteStore(address, token=token_of(options), tls=tls_of(scheme, options))
