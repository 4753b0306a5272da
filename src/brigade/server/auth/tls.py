"""TLS on the server's side: its certificate, and whose certificates it asks clients for."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import Any

from brigade.errors import ConfigError

__all__ = ["TLS"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TLS:
    """A certificate with its key and, for mutual TLS, the authority that clients' certificates must come from."""

    cert: str
    key: str | None = None
    client_ca: str | None = None

    @classmethod
    def of(cls, cert: str | None, key: str | None, client_ca: str | None) -> TLS | None:
        """What was configured; None without TLS."""
        if cert is None:
            given = "tls_key" if key is not None else "tls_client_ca" if client_ca is not None else None
            if given:
                raise ConfigError(f"{given} is set and tls_cert is not; give the server's certificate as well")
            return None
        made = cls(cert=cert, key=key, client_ca=client_ca)
        made.context()
        return made

    def context(self) -> ssl.SSLContext:
        """What connections are made with. A ConfigError names the file that is wrong."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        try:
            context.load_cert_chain(self.cert, self.key, password=_no_password)
        except OSError as error:
            files = self.cert if self.key is None else f"{self.cert} and {self.key}"
            raise ConfigError(f"tls_cert and tls_key ({files}) can't be used: {_why(error)}") from None
        if self.client_ca is not None:
            try:
                context.load_verify_locations(self.client_ca)
            except OSError as error:
                raise ConfigError(f"tls_client_ca ({self.client_ca}) can't be used: {_why(error)}") from None
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def uvicorn(self) -> dict[str, Any]:
        """The same, as uvicorn takes it."""
        asks = {"ssl_ca_certs": self.client_ca, "ssl_cert_reqs": ssl.CERT_REQUIRED} if self.client_ca else {}
        return {"ssl_certfile": self.cert, "ssl_keyfile": self.key, **asks}


def _no_password() -> str:
    raise ConfigError("tls_key is encrypted with a password; give a key without one, in a file that only you can read")


def _why(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return f"{error.reason or 'not PEM'}; it must be PEM, and the key must be that of the certificate"
    return f"{error.strerror or error}; check the path"
