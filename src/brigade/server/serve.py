"""A server's life: open the store, listen, serve, and on the way out give back what nobody got."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import signal
import socket
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

import uvicorn

from brigade.errors import ConfigError
from brigade.hub import AsyncHub
from brigade.server.app import LOOPBACK, make_app
from brigade.server.auth.gate import gate_for
from brigade.server.auth.tls import TLS
from brigade.server.config import Settings, default_consumers
from brigade.server.metrics import count_from_now
from brigade.server.protocol import MOST_HEAD, protocol
from brigade.server.service import Limits, Service
from brigade.stores import Pace, PacedStore

if TYPE_CHECKING:
    from brigade.server.dashboard.desk import Desk

__all__ = ["ServerConfig", "Serving", "listen", "new_loop", "run", "serve"]

log = logging.getLogger("brigade.server")
BACKLOG = 2048
TAKEN_IN_WITHIN = 0.02
"""Seconds in which a client that was let in becomes a connection."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """Where a server listens, on which store, and how much it takes."""

    url: str
    host: str = "127.0.0.1"
    port: int = 8421
    grace: float = 10.0
    auth: str = "none"
    tls: TLS | None = None
    limits: Limits = field(default_factory=lambda: Limits(most_consumers=default_consumers()))
    options: dict[str, Any] = field(default_factory=dict[str, Any])
    pace: Pace = field(default_factory=Pace)
    dashboard: bool = True
    redact: str | None = None

    @classmethod
    def of(cls, settings: Settings) -> ServerConfig:
        """A server as its settings say."""
        url: str = settings["url"]
        watch = True
        if url.startswith("memory:"):
            watch = not settings["disable_mem_queue_watch"]
        elif url.startswith("file:"):
            watch = settings["disk_queue_watch"]
        return cls(
            url=url,
            host=settings["host"],
            port=settings["port"],
            grace=settings["grace"],
            auth=settings["auth"],
            tls=TLS.of(settings["tls_cert"], settings["tls_key"], settings["tls_client_ca"]),
            limits=Limits(
                most_consumers=settings["queue_max_consumers"],
                most_wait=settings["max_wait"],
                most_messages=settings["max_batch"],
                most_body=settings["max_body"],
                most_stream=settings["max_stream"],
                most_headers=settings["max_headers"],
                most_requests=settings["max_requests"],
            ),
            options=settings.options,
            dashboard=settings["dashboard"],
            redact=settings["redact"] or None,
            pace=Pace(
                poll=settings["queue_poll_interval"],
                jitter=settings["queue_poll_jitter"],
                safety=settings["queue_resilient_poll_interval"],
                watch=watch,
            ),
        )

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"port is {self.port}; use 1 to 65535, or 0 for any that is free")
        if self.url.startswith(("http://", "https://")):
            raise ConfigError("url is another server; name the store itself")
        if self.auth not in ("none", "tokens"):
            raise ConfigError(f"auth is {self.auth!r}; use tokens, or none on this machine alone")
        if not _is_loopback(self.host) and not self.authenticated:
            raise ConfigError(
                f"host is {self.host!r}, which other machines can reach, and nothing checks who asks: set auth to "
                "tokens (`brigade token create` makes one), or tls_client_ca to let in only clients with a certificate "
                "of yours, or listen on 127.0.0.1"
            )

    @property
    def authenticated(self) -> bool:
        """Whether something checks who asks."""
        return self.auth == "tokens" or (self.tls is not None and self.tls.client_ca is not None)


def _is_loopback(host: str) -> bool:
    if host in LOOPBACK:
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: a server that is one part of a process leaves signals to it.

    It ends with all its connections: those that were taken in just before are told to end like the others, and who
    hasn't read an answer when the grace is over is hung up on.
    """

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        await asyncio.sleep(TAKEN_IN_WITHIN)
        await super().shutdown(sockets)
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        await asyncio.sleep(0)


class Serving:
    """A running server: `async with Serving(config) as serving`."""

    def __init__(self, config: ServerConfig) -> None:
        self.config = config
        self._hub = AsyncHub(config.url, **config.options)
        self._socket: socket.socket | None = None
        self._server: _Server | None = None
        self._task: asyncio.Task[None] | None = None
        self._service: Service | None = None
        self._desk: Desk | None = None

    @property
    def desk(self) -> Desk | None:
        """The dashboard, where there is one."""
        return self._desk

    @property
    def service(self) -> Service:
        assert self._service is not None
        return self._service

    @property
    def address(self) -> str:
        """The URL that clients connect to."""
        assert self._socket is not None
        host, port = self._socket.getsockname()[:2]
        scheme = "http" if self.config.tls is None else "https"
        return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"

    async def __aenter__(self) -> Self:
        self._socket = listen(self.config.host, self.config.port)
        try:
            await self._hub.open()
            if isinstance(self._hub.store, PacedStore):
                self._hub.store.pace = self.config.pace
            gate = await gate_for(self._hub, self.config.auth)
            self._service = Service(self._hub, self.config.limits, gate)
            count_from_now(self._service)
            hosts = None if self.config.authenticated else {*LOOPBACK, self.config.host.lower()}
            app = make_app(self._service, hosts=hosts)
            if self.config.dashboard:
                self._desk, app = _with_pages(app, self._service, self.config, hosts)
            self._server = _Server(_uvicorn_config(app, self.config))
            self._task = asyncio.create_task(self._server.serve(sockets=[self._socket]))
        except BaseException:
            self._socket.close()
            await self._hub.close()
            raise
        return self

    def stop(self) -> None:
        """Take nobody in any more, and end what waits or streams. Called from any thread."""
        self._hub.loop.call_soon_threadsafe(self.service.stop)

    async def __aexit__(self, *_: object) -> None:
        """Stop taking, let requests end, release what is undelivered."""
        assert self._server is not None
        assert self._task is not None
        assert self._socket is not None
        self.service.stop()
        if self._desk is not None:
            self._desk.stop()
        self._server.should_exit = True
        try:
            await self._task
        finally:
            self._socket.close()
            await self.service.dispatcher.close()
            await self._hub.close()

    async def ended(self) -> None:
        """Return if the server ends by itself, which it doesn't unless something is wrong."""
        assert self._task is not None
        await asyncio.shield(self._task)


def _with_pages(api: Any, service: Service, config: ServerConfig, hosts: set[str] | None) -> tuple[Desk | None, Any]:
    """The API with the dashboard beside it, where what that needs is installed."""
    try:
        from brigade.server.dashboard.app import make_dashboard, with_dashboard
        from brigade.server.dashboard.desk import Desk
        from brigade.server.dashboard.redaction import load_redaction
    except ModuleNotFoundError as error:
        if error.name not in ("jinja2", "markupsafe"):
            raise
        log.warning("there is no dashboard, since it needs %s: pip install 'bucket-brigade[dashboard]'", error.name)
        return None, api
    desk = Desk(service, redaction=load_redaction(config.redact))
    return desk, with_dashboard(api, make_dashboard(desk, hosts))


def listen(host: str, port: int) -> socket.socket:
    """A bound socket. It is bound before anything is opened, so that a port in use costs nothing."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # By its name: event loops switch Nagle's delay off only where the protocol is told, and it costs 40 ms an answer.
    made = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((host, port))
        made.listen(BACKLOG)
        made.setblocking(False)
    except OSError as error:
        made.close()
        raise ConfigError(f"port {port} on {host} cannot be used: {error.strerror or error}; choose another") from None
    return made


def _uvicorn_config(app: Any, config: ServerConfig) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        interface="asgi3",
        lifespan="off",
        access_log=False,
        log_config=None,
        log_level="warning",
        server_header=False,
        ws="none",
        http=protocol(),
        h11_max_incomplete_event_size=MOST_HEAD,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=max(1, round(config.grace)),
        backlog=BACKLOG,
        **(config.tls.uvicorn() if config.tls else {}),
    )


def run(config: ServerConfig, *, ready: Callable[[str], None] = lambda _: None) -> None:
    """`serve`, on an event loop of its own."""
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(serve(config, ready=ready))


def new_loop() -> asyncio.AbstractEventLoop:
    """uvloop's where that is installed: a seventh less of the processor for a request."""
    try:
        from uvloop import new_event_loop
    except ModuleNotFoundError:
        return asyncio.new_event_loop()
    return new_event_loop()


async def serve(config: ServerConfig, *, ready: Callable[[str], None] = lambda _: None) -> None:
    """Serve until SIGTERM or SIGINT. `ready` is told the address when connections are taken."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for one in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(one, stop.set)
    try:
        async with Serving(config) as serving:
            ready(serving.address)
            ending = asyncio.create_task(serving.ended())
            stopping = asyncio.create_task(stop.wait())
            await asyncio.wait({ending, stopping}, return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
            if not stop.is_set():
                await ending
            ending.cancel()
    finally:
        for one in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(one)
