"""`brigade serve`: queues over HTTP."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from typing import Any

import click

from brigade.cli.common import DEFAULT_URL, json_option, print_json, say
from brigade.errors import ConfigError
from brigade.stores.opening import shown_url

__all__ = ["serve"]

LEVELS = ("debug", "info", "warning", "error")


@click.command(short_help="Serve queues over HTTP.")
@click.option("--host", default="127.0.0.1", show_default=True, envvar="BRIGADE_HOST", help="Where to listen.")
@click.option("--port", type=int, default=8421, show_default=True, envvar="BRIGADE_PORT", help="0: any that is free.")
@click.option("--url", metavar="URL", help="The store. Also BRIGADE_URL; default file://./.brigade")
@click.option("--max-consumers", type=int, metavar="N", envvar="BRIGADE_MAX_CONSUMERS", help="That wait at once.")
@click.option("--max-wait", type=float, default=300.0, show_default=True, envvar="BRIGADE_MAX_WAIT", help="Seconds.")
@click.option("--max-batch", type=int, default=1000, show_default=True, envvar="BRIGADE_MAX_BATCH", help="Messages.")
@click.option("--max-body", type=int, metavar="BYTES", envvar="BRIGADE_MAX_BODY", help="Of JSON. Default 16 MiB.")
@click.option("--max-stream", type=int, metavar="BYTES", envvar="BRIGADE_MAX_STREAM", help="Default about 1 GiB.")
@click.option(
    "--grace", type=float, default=10.0, show_default=True, envvar="BRIGADE_GRACE", help="Seconds, at the end."
)
@click.option(
    "--auth",
    type=click.Choice(["none", "tokens"]),
    default="none",
    show_default=True,
    envvar="BRIGADE_AUTH",
    help="tokens: ask for one.",
)
@click.option("--tls-cert", metavar="FILE", envvar="BRIGADE_TLS_CERT", help="Serve https with this certificate (PEM).")
@click.option("--tls-key", metavar="FILE", envvar="BRIGADE_TLS_KEY", help="Its key, unless it is in the same file.")
@click.option(
    "--tls-client-ca",
    metavar="FILE",
    envvar="BRIGADE_TLS_CLIENT_CA",
    help="Let in only clients with a certificate of it.",
)
@click.option("--log-level", type=click.Choice(LEVELS), default="info", show_default=True, envvar="BRIGADE_LOG_LEVEL")
@json_option
@click.pass_context
def serve(
    context: click.Context,
    url: str | None,
    host: str,
    port: int,
    grace: float,
    auth: str,
    tls_cert: str | None,
    tls_key: str | None,
    tls_client_ca: str | None,
    log_level: str,
    as_json: bool,
    **limits: Any,
) -> None:
    """Serve the queues of a store over HTTP, to curl, to other languages, and to `--url http://HOST:PORT`.

    Without --auth tokens or --tls-client-ca it listens on this machine only. The address is written to standard error,
    or with --json to standard output, when connections are taken. SIGTERM or Ctrl-C: consumers that wait go home with
    nothing, requests end within --grace, and what nobody got is given back. A flag goes before its BRIGADE_ variable:
    --max-wait before BRIGADE_MAX_WAIT.

    \b
    Examples:
      brigade serve --url file://./jobs
      curl -d '{"queue": "tasks", "payload": {"n": 1}}' localhost:8421/v1/queue/enqueue
      brigade stats --url http://localhost:8421
      brigade serve --host 0.0.0.0 --auth tokens --tls-cert server.pem --tls-key server.key
    """
    try:
        from brigade.server import serve as serving
        from brigade.server.auth.tls import TLS
        from brigade.server.service import Limits
    except ModuleNotFoundError as error:
        if error.name not in ("uvicorn", "starlette", "httpx"):
            raise
        raise ConfigError(f"serve needs {error.name}: pip install 'bucket-brigade[server]'") from error
    logging.basicConfig(level=log_level.upper(), format="%(asctime)s %(levelname)s %(name)s %(message)s")
    logging.getLogger("httpx").setLevel("WARNING")
    given = {_LIMITS[name]: value for name, value in limits.items() if value is not None}
    given.setdefault("most_consumers", serving.default_consumers())
    config = serving.ServerConfig(
        url=url or context.find_root().params.get("url") or _default_url(),
        host=host,
        port=port,
        grace=grace,
        auth=auth,
        tls=TLS.of(tls_cert, tls_key, tls_client_ca),
        limits=Limits(**given),
    )

    def ready(address: str) -> None:
        if as_json:
            print_json({"url": shown_url(config.url), "address": address})
            sys.stdout.flush()
        else:
            say(f"serving {shown_url(config.url)} at {address}", err=True)

    asyncio.run(serving.serve(config, ready=ready))


_LIMITS = {
    "max_consumers": "most_consumers",
    "max_wait": "most_wait",
    "max_batch": "most_messages",
    "max_body": "most_body",
    "max_stream": "most_stream",
}


def _default_url() -> str:
    return os.environ.get("BRIGADE_URL") or DEFAULT_URL
