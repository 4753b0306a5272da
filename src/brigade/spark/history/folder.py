"""The folder that the tables lie in: files of any file system that Spark knows, through Spark itself."""

from __future__ import annotations

import contextlib
import fcntl
import functools
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from brigade.errors import BrigadeError, ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Folder"]


class Folder:
    """A folder, with what the pipeline does to files in it. Paths are given relative to it."""

    def __init__(self, spark: SparkSession, place: str) -> None:
        jvm: Any = getattr(spark, "_jvm", None)
        if jvm is None:
            raise ConfigError("the history tables need a session on this machine's own Spark, not Spark Connect")
        self._jvm = jvm
        self._root = jvm.org.apache.hadoop.fs.Path(place if "://" in place else str(Path(place).absolute()))
        inner: Any = spark
        conf: Any = inner._jsc.hadoopConfiguration()
        self._fs: Any = self._root.getFileSystem(conf)
        self.place = str(self._fs.makeQualified(self._root))

    def _path(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self._root, name) if name else self._root

    def at(self, name: str) -> str:
        """The whole path, for Spark's readers and writers."""
        return f"{self.place}/{name}"

    @functools.cached_property
    def local(self) -> Path | None:
        """The same folder on this machine's disk, if that is where it is."""
        uri = self._fs.makeQualified(self._root).toUri()
        return Path(uri.getPath()) if uri.getScheme() == "file" else None

    def exists(self, name: str) -> bool:
        return bool(self._fs.exists(self._path(name)))

    def names(self, name: str = "") -> list[str]:
        """What lies in a folder; nothing where it isn't there."""
        if not self.exists(name):
            return []
        return sorted(status.getPath().getName() for status in self._fs.listStatus(self._path(name)))

    def delete(self, name: str) -> None:
        self._fs.delete(self._path(name), True)

    def move(self, source: str, target: str) -> None:
        """Move a file into a folder that may not be there yet."""
        to = self._path(target)
        self._fs.mkdirs(to.getParent())
        if not self._fs.rename(self._path(source), to):
            raise BrigadeError(
                f"{source} could not be moved to {target} in {self.place}; look at who else writes there"
            )

    def read(self, name: str) -> str | None:
        """A small file's text, or None."""
        if self.local is not None:
            file = self.local / name
            return file.read_text(encoding="utf-8") if file.exists() else None
        if not self.exists(name):
            # Its writer may have died between taking the old one away and moving the new one there.
            name = f"{name}.new"
            if not self.exists(name):
                return None
        stream = self._fs.open(self._path(name))
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def write(self, name: str, text: str) -> None:
        """Replace a small file: written beside it, then moved there, so that it is whole or not there."""
        if self.local is not None:
            file = self.local / name
            file.parent.mkdir(parents=True, exist_ok=True)
            beside = file.with_name(f"{file.name}.new")
            beside.write_text(text, encoding="utf-8")
            beside.replace(file)
            return
        fresh = self._path(f"{name}.new")
        stream = self._fs.create(fresh, True)
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()
        target = self._path(name)
        if self._fs.exists(target):
            self._fs.delete(target, False)
        self._fs.rename(fresh, target)

    @contextlib.contextmanager
    def held(self) -> Generator[None, None, None]:
        """Keep other runs out while this one changes the tables. On a disk that is sure; elsewhere it is up to you."""
        here = self.local
        if here is None:
            yield
            return
        lock = here / "_brigade" / "lock"
        lock.parent.mkdir(parents=True, exist_ok=True)
        with lock.open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise BrigadeError(f"another run is changing the tables in {here}; wait for it to end") from None
            yield
