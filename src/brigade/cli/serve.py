"""`brigade serve`: queues over HTTP."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from typing import Any

import click

from brigade.cli.common import json_option, print_json, say
from brigade.errors import ConfigError
from brigade.server.config import SETTINGS, Setting, read_settings
from brigade.stores.opening import shown_url

__all__ = ["serve"]


def _options(command: Callable[..., Any]) -> Callable[..., Any]:
    """A flag for each setting."""
    for setting in reversed(SETTINGS):
        command = _option(setting)(command)
    return command


def _option(setting: Setting) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    shown = setting.shown or setting.default
    text = f"{setting.help} Default {shown}." if shown is not None else setting.help
    if setting.kind is bool:
        names = f"{setting.flag}/--no-{setting.flag[2:]}"
        return click.option(names, setting.name, default=None, help=text.replace("True", "yes").replace("False", "no"))
    metavar = {int: "N", float: "SECONDS", str: "TEXT"}[setting.kind]
    kind = click.Choice(setting.choices) if setting.choices else setting.kind
    return click.option(setting.flag, setting.name, type=kind, metavar=metavar, help=text)


@click.command(short_help="Serve queues over HTTP.")
@_options
@click.option("--config", metavar="FILE", help="Settings in TOML. Also BRIGADE_CONFIG.")
@json_option
@click.pass_context
def serve(context: click.Context, config: str | None, as_json: bool, **flags: Any) -> None:
    """Serve the queues of a store over HTTP, to curl, to other languages, and to `--url http://HOST:PORT`.

    Without --auth tokens or --tls-client-ca it listens on this machine only. The address is written to standard error,
    or with --json to standard output, when connections are taken. SIGTERM or Ctrl-C: consumers that wait go home with
    nothing, requests end within --grace, and what nobody got is given back. A flag goes before its BRIGADE_ variable
    (--max-wait before BRIGADE_MAX_WAIT), and that before `max-wait` in the file that --config names.

    \b
    Examples:
      brigade serve --url file://./jobs
      curl -d '{"queue": "tasks", "payload": {"n": 1}}' localhost:8421/v1/queue/enqueue
      brigade stats --url http://localhost:8421
      brigade serve --host 0.0.0.0 --auth tokens --tls-cert server.pem --tls-key server.key
    """
    try:
        from brigade.server import serve as serving
    except ModuleNotFoundError as error:
        if error.name not in ("uvicorn", "starlette", "httpx"):
            raise
        raise ConfigError(f"serve needs {error.name}: pip install 'bucket-brigade[server]'") from error
    flags["url"] = flags["url"] or context.find_root().params.get("url")
    settings = read_settings(flags, os.environ, config)
    logging.basicConfig(level=settings["log_level"].upper(), format="%(asctime)s %(levelname)s %(name)s %(message)s")
    logging.getLogger("httpx").setLevel("WARNING")
    made = serving.ServerConfig.of(settings)

    def ready(address: str) -> None:
        if as_json:
            print_json({"url": shown_url(made.url), "address": address})
            sys.stdout.flush()
        else:
            say(f"serving {shown_url(made.url)} at {address}", err=True)

    serving.run(made, ready=ready)
