"""What a client shows a server: its token and its certificate. Errors never repeat a token."""

from __future__ import annotations

import os
import re
import ssl
from pathlib import Path
from typing import Any

from brigade.errors import ConfigError

__all__ = ["tls_of", "token_of"]

_VARIABLES = {"ca": "BRIGADE_CA", "cert": "BRIGADE_CLIENT_CERT", "key": "BRIGADE_CLIENT_KEY"}
_TOKEN = re.compile(r"[\x21-\x7e]{1,512}")


def token_of(options: dict[str, Any]) -> str | None:
    """The token: from the option, a file, BRIGADE_TOKEN or BRIGADE_TOKEN_FILE, in that order."""
    if options.get("token") is not None:
        return _checked(options["token"], "the option token")
    if options.get("token_file") is not None:
        return _from_file(options["token_file"], "token_file")
    if os.environ.get("BRIGADE_TOKEN"):
        return _checked(os.environ["BRIGADE_TOKEN"], "BRIGADE_TOKEN")
    if os.environ.get("BRIGADE_TOKEN_FILE"):
        return _from_file(os.environ["BRIGADE_TOKEN_FILE"], "BRIGADE_TOKEN_FILE")
    return None


def _checked(token: str, source: str) -> str:
    if not _TOKEN.fullmatch(token):
        raise ConfigError(f"{source} is not a token: it must be 1 to 512 printable ASCII characters without spaces")
    return token


def _from_file(path: str, source: str) -> str:
    try:
        return _checked(Path(path).read_text(encoding="utf-8").strip(), f"what {source} holds")
    except UnicodeDecodeError:
        raise ConfigError(f"{source} ({path}) does not hold a token: it is not text") from None
    except OSError as error:
        raise ConfigError(f"{source} ({path}) can't be read: {error.strerror or error}") from None


def tls_of(scheme: str, options: dict[str, Any]) -> ssl.SSLContext | None:
    """How to check the server, and what to show it; None: as the system does."""
    ca, cert, key = (options.get(name) or os.environ.get(variable) for name, variable in _VARIABLES.items())
    if ca is None and cert is None:
        if key is not None and options.get("key"):
            raise ConfigError("key is given and cert is not; give the client's certificate as well")
        return None
    if scheme == "http":
        if any(options.get(name) for name in ("ca", "cert", "key")):
            raise ConfigError("ca, cert and key are for https://; use it, or leave them out")
        return None
    context = ssl.create_default_context()
    if ca is not None:
        try:
            context.load_verify_locations(ca)
        except OSError as error:
            raise ConfigError(f"ca ({ca}) can't be used: {_why(error)}") from None
    if cert is not None:
        try:
            context.load_cert_chain(cert, key, password=_no_password)
        except OSError as error:
            raise ConfigError(
                f"cert and key ({cert}, {key or 'in the same file'}) can't be used: {_why(error)}"
            ) from None
    return context


def _no_password() -> str:
    raise ConfigError(
        "the client's key is encrypted with a password; give one without, in a file that only you can read"
    )


def _why(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return f"{error.reason or 'not PEM'}; it must be PEM, and the key must be that of the certificate"
    return f"{error.strerror or error}; check the path"
