"""Azurite, Microsoft's emulator of Azure's object store, from the npm package `azurite`."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import shutil
import sys
import urllib.request
from contextlib import AbstractContextManager
from email.utils import formatdate
from pathlib import Path
from typing import Any
from urllib.parse import quote

from brigade.testing.servers.running import Started, free_ports, shared

__all__ = ["ACCOUNT", "ACCOUNT_KEY", "CONTAINER", "az_url", "azurite", "azurite_program"]

CONTAINER = "brigade"
ACCOUNT = "devstoreaccount1"
ACCOUNT_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The emulator's own, which everybody knows."""


def azurite_program() -> str | None:
    """Where the emulator is: BRIGADE_AZURITE, the virtual environment, or PATH."""
    installed = Path(sys.prefix, "azurite", "node_modules", ".bin", "azurite-blob")
    return os.environ.get("BRIGADE_AZURITE") or (str(installed) if installed.exists() else shutil.which("azurite-blob"))


def azurite(folder: Path) -> AbstractContextManager[str]:
    """The endpoint of an Azurite with one container."""
    return shared(folder, _azurite)


def az_url(endpoint: str, prefix: str = "", *, container: str = CONTAINER, key: str = ACCOUNT_KEY) -> str:
    """A store's URL on such a server."""
    return f"az://{container}/{prefix}?endpoint={endpoint}&account={ACCOUNT}&account_key={quote(key, safe='')}"


def _azurite(_data: Path) -> Started:
    program = azurite_program()
    if program is None:
        raise FileNotFoundError("azurite is not installed: run `make setup`, or npm install azurite")
    (port,) = free_ports(1)
    line = [program, "--blobPort", str(port), "--inMemoryPersistence", "--silent", "--skipApiVersionCheck"]
    line += ["--disableTelemetry", "--extentMemoryLimit", "512"]
    return Started(line, {"endpoint": f"http://127.0.0.1:{port}/{ACCOUNT}"}, _make_container)


def _make_container(info: dict[str, Any]) -> None:
    """Make the container, signed with the account's key; fails while the server is not ready."""
    headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2023-11-03"}
    signed = "".join(f"{name}:{value}\n" for name, value in sorted(headers.items()))
    text = "PUT" + "\n" * 12 + signed + f"/{ACCOUNT}/{ACCOUNT}/{CONTAINER}\nrestype:container"
    signature = base64.b64encode(hmac.digest(base64.b64decode(ACCOUNT_KEY), text.encode(), hashlib.sha256)).decode()
    headers |= {"Authorization": f"SharedKey {ACCOUNT}:{signature}", "Content-Length": "0"}
    url = f"{info['endpoint']}/{CONTAINER}?restype=container"
    urllib.request.urlopen(urllib.request.Request(url, method="PUT", headers=headers), timeout=10).close()
