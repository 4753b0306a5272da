"""Blobs on a local disk, shared by any number of processes on one machine.

An object is written to a temporary file, made durable, and then appears by `link` (create) or `rename` (swap),
so a torn file is never visible. Swaps and conditional deletes of a key hold a lock file, one of a fixed set
chosen by the key's hash; the kernel lets go of it when a process dies. The etag is the file's modification
time, which every write sets to a value greater than the one before, and its size: a listing tells it without
reading the file.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import threading
import zlib
from bisect import bisect_left
from collections import Counter, OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator
from typing import Any

from brigade.blobs import CONFLICT, Blob, Copy, Create, Delete, DeleteIf, Get, Item, List, Op, Page, Swap
from brigade.blobs.filelock import FileLock
from brigade.blobs.threads import Threads
from brigade.blobs.watch import DirectoryWatch, is_network_filesystem
from brigade.clock import Clock, wall_ns
from brigade.errors import ConfigError, MessageNotFound, PermissionDenied, StoreUnavailable

__all__ = ["DiskBlobs"]

LOCKS = 64
THREADS = 8
STREAM_CHUNK = 1024 * 1024
SMALL = 256 * 1024
MOST_NAMES = 20_000
TEMPORARY_AGE = 3600 * 10**9


class DiskBlobs:
    """A directory as a bucket."""

    listing_ttl = 0.1
    immediate = False
    pledges = False
    poll_interval = 6.0
    patience = 0.0

    def __init__(self, root: str, *, fsync: bool = True, watch: bool = True) -> None:
        self._root = os.path.abspath(root)
        self._fsync = fsync
        self._temporary = os.path.join(self._root, ".tmp")
        self._counts: Counter[str] = Counter()
        self._serial = 0
        self._listings: OrderedDict[str, tuple[int, list[str]]] = OrderedDict()
        self._keeping = threading.Lock()
        with self._explained("open"):
            os.makedirs(self._temporary, exist_ok=True)
            os.makedirs(os.path.join(self._root, ".locks"), exist_ok=True)
            self._locks = [FileLock(os.path.join(self._root, ".locks", f"{n:02x}")) for n in range(LOCKS)]
            self._check_timestamps()
        network = is_network_filesystem(self._root)
        self._local = self.prompt = not network
        self._loops_thread = threading.get_ident()
        self._watch = DirectoryWatch(self._root) if watch and not network else None
        self._threads = Threads(THREADS, "brigade-disk")
        self._sweep_temporary()

    async def open(self, clock: Clock) -> None:
        """The directory is there since this object was made; this machine's clock is the store's."""
        self._loops_thread = threading.get_ident()

    def try_now(self, op: Op) -> object:
        """What only touches the page cache is done at once: a thread would take longer to wake.

        A thread that isn't the loop's may wait for the disk itself, too.
        """
        if not self._local:
            return NotImplemented
        if isinstance(op, Get):
            return self._perform(op)
        if not isinstance(op, Create | Swap) or len(op.body) > SMALL:
            return NotImplemented
        if self._fsync and threading.get_ident() == self._loops_thread:
            return NotImplemented
        if isinstance(op, Create):
            return self._perform(op)
        lock = self._lock(op.key)
        if not lock.try_enter():
            return NotImplemented
        self._counts["swap"] += 1
        with self._explained("swap"):
            return self._swap_in(lock, op.key, op.body, op.etag)

    async def perform(self, op: Op) -> object:
        return await self._threads.run(self._perform, op)

    async def put_stream(self, key: str, chunks: AsyncIterator[bytes]) -> int:
        self._counts["create"] += 1
        temporary = self._temporary_name()
        size = 0
        with self._explained("write"):
            file = await self._threads.run(lambda: open(temporary, "xb"))  # noqa: SIM115
        try:
            async for chunk in chunks:
                size += len(chunk)
                with self._explained("write"):
                    await self._threads.run(file.write, chunk)
            with self._explained("write"):
                await self._threads.run(self._seal_and_link, file, temporary, key)
        finally:
            file.close()
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
        return size

    async def get_stream(self, key: str, *, chunk: int = STREAM_CHUNK) -> AsyncGenerator[bytes]:
        self._counts["get"] += 1
        try:
            file = await self._threads.run(lambda: open(self._path(key), "rb"))  # noqa: SIM115
        except FileNotFoundError:
            raise MessageNotFound(f"payload {key!r} is gone: its message has ended") from None
        try:
            while data := await self._threads.run(file.read, chunk):
                yield data
        finally:
            file.close()

    def watch(self, prefix: str, wake: Callable[[str], None]) -> Callable[[], None] | None:
        return None if self._watch is None else self._watch.subscribe(prefix, wake)

    def prune(self, prefix: str) -> None:
        """Remove the folder of that name and those in it, as far as they are empty."""
        for folder, _, _ in os.walk(self._path(prefix), topdown=False):
            with contextlib.suppress(OSError):
                os.rmdir(folder)

    def requests(self) -> dict[str, int]:
        return dict(self._counts)

    async def close(self) -> None:
        if self._watch is not None:
            self._watch.close()
        await self._threads.close()
        for lock in self._locks:
            lock.close()

    def _perform(self, op: Op) -> object:
        self._counts[type(op).__name__.lower()] += 1
        with self._explained(type(op).__name__.lower()):
            match op:
                case Get(key):
                    return self._get(key)
                case Create(key, body):
                    return self._create(key, body)
                case Swap(key, body, etag):
                    return self._swap(key, body, etag)
                case List(prefix, after, limit):
                    return self._list(prefix, after, limit)
                case Delete(keys):
                    self._delete(keys)
                    return None
                case DeleteIf(key, etag):
                    return self._delete_if(key, etag)
                case Copy(source, target):
                    return self._copy(source, target)

    def _path(self, key: str) -> str:
        return f"{self._root}/{key}"

    def _temporary_name(self) -> str:
        self._serial += 1
        return f"{self._temporary}/{os.getpid()}-{threading.get_ident()}-{self._serial}-{wall_ns()}"

    def _get(self, key: str) -> Blob | None:
        try:
            fd = os.open(self._path(key), os.O_RDONLY)
        except (FileNotFoundError, NotADirectoryError):
            return None
        try:
            stat = os.fstat(fd)
            body = os.read(fd, stat.st_size + 1)
            while len(body) < stat.st_size and (more := os.read(fd, stat.st_size - len(body))):
                body += more
        finally:
            os.close(fd)
        return Blob(body, _etag(stat), stat.st_mtime_ns // 1_000_000)

    def _create(self, key: str, body: bytes) -> object:
        temporary = self._temporary_name()
        moment = self._write_temporary(temporary, body, 0)
        try:
            if not self._link(temporary, self._path(key)):
                return CONFLICT
        finally:
            os.unlink(temporary)
        self._sync_folder(key)
        return _etag_of(moment, len(body))

    def _swap(self, key: str, body: bytes, etag: str) -> object:
        lock = self._lock(key)
        lock.__enter__()
        return self._swap_in(lock, key, body, etag)

    def _swap_in(self, lock: FileLock, key: str, body: bytes, etag: str) -> object:
        """Swap under a lock that is held already, and let go of it."""
        try:
            answer = self._swap_locked(key, body, etag)
        finally:
            lock.__exit__()
        if answer is not CONFLICT:
            self._sync_folder(key)
        return answer

    def _swap_locked(self, key: str, body: bytes, etag: str) -> object:
        path, temporary = self._path(key), self._temporary_name()
        try:
            before = os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return CONFLICT
        if _etag(before) != etag:
            return CONFLICT
        moment = self._write_temporary(temporary, body, before.st_mtime_ns + 1)
        os.replace(temporary, path)
        return _etag_of(moment, len(body))

    def _delete(self, keys: tuple[str, ...]) -> None:
        folders: dict[str, str] = {}
        for key in keys:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError), self._lock(key):
                os.unlink(self._path(key))
                folders[os.path.dirname(key)] = key
        for key in folders.values():
            self._sync_folder(key)

    def _delete_if(self, key: str, etag: str) -> object:
        with self._lock(key):
            try:
                if _etag(os.stat(self._path(key))) != etag:
                    return CONFLICT
                os.unlink(self._path(key))
            except (FileNotFoundError, NotADirectoryError):
                return CONFLICT
        self._sync_folder(key)
        return etag

    def _copy(self, source: str, target: str) -> bool:
        temporary = self._temporary_name()
        try:
            with open(self._path(source), "rb") as reader, open(temporary, "xb") as writer:
                shutil.copyfileobj(reader, writer, STREAM_CHUNK)
                self._seal(writer)
        except FileNotFoundError:
            return False
        else:
            with self._lock(target):
                self._put_in_place(os.replace, temporary, self._path(target))
            self._sync_folder(target)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
        return True

    def _seal_and_link(self, file: Any, temporary: str, key: str) -> None:
        self._seal(file)
        self._link(temporary, self._path(key))
        self._sync_folder(key)

    def _seal(self, file: Any) -> None:
        """Make a file durable that nobody sees yet, with a modification time of our own."""
        file.flush()
        moment = wall_ns()
        os.utime(file.fileno(), ns=(moment, moment))
        if self._fsync:
            os.fsync(file.fileno())

    def _write_temporary(self, temporary: str, body: bytes, at_least: int) -> int:
        """Write a file that nobody sees yet, with a modification time of our own; returns that time."""
        moment = max(wall_ns(), at_least)
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            view = memoryview(body)
            while view:
                view = view[os.write(fd, view) :]
            os.utime(fd, ns=(moment, moment))
            if self._fsync:
                os.fsync(fd)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
        finally:
            os.close(fd)
        return moment

    def _link(self, temporary: str, path: str) -> bool:
        """Make the file appear under its name; False where the name is taken."""
        try:
            self._put_in_place(os.link, temporary, path)
        except FileExistsError:
            return False
        return True

    def _put_in_place(self, move: Callable[[str, str], None], temporary: str, path: str) -> None:
        """Link or rename; its folder may have to be made, also anew."""
        while True:
            try:
                return move(temporary, path)
            except FileNotFoundError:
                self._make_folder(os.path.dirname(path))

    def _make_folder(self, folder: str) -> None:
        missing: list[str] = []
        while not os.path.isdir(folder):
            missing.append(folder)
            folder = os.path.dirname(folder)
        for made in reversed(missing):
            with contextlib.suppress(FileExistsError):
                os.mkdir(made)
            if self._fsync:
                _sync(os.path.dirname(made))

    def _sync_folder(self, key: str) -> None:
        if self._fsync:
            with contextlib.suppress(FileNotFoundError):
                _sync(os.path.dirname(self._path(key)))

    def _list(self, prefix: str, after: str, limit: int) -> Page:
        items: list[Item] = []
        folder, _, partial = prefix.rpartition("/")
        for key in self._walk(f"{folder}/" if folder else "", after, partial):
            if len(items) == limit:
                return Page(items, True)
            try:
                stat = os.stat(self._path(key))
            except (FileNotFoundError, NotADirectoryError):
                continue
            items.append(Item(key, _etag(stat), stat.st_size, stat.st_mtime_ns // 1_000_000))
        return Page(items, False)

    def _walk(self, folder: str, after: str, partial: str = "") -> Iterator[str]:
        """The keys below a folder that come after `after`, in byte order; `partial` is how their next name starts."""
        if after.startswith(folder):
            passed = after[len(folder) :]
        elif after > folder:
            return
        else:
            passed = ""
        names = self._names(folder, passed)
        start = bisect_left(names, max(passed, partial))
        if start and names[start - 1].endswith("/") and passed.startswith(names[start - 1]):
            start -= 1
        for name in names[start:]:
            if not name.startswith(partial):
                return
            if name.endswith("/"):
                yield from self._walk(folder + name, after)
            elif folder + name > after:
                yield folder + name

    def _names(self, folder: str, passed: str) -> list[str]:
        """A folder's sorted names, folders with a slash; at least those that don't come before `passed`.

        A listing from the start is kept while the folder's time shows that nothing has changed: others go on with it.
        """
        path = self._path(folder)
        try:
            changed = os.stat(path).st_mtime_ns
        except (FileNotFoundError, NotADirectoryError):
            return []
        kept = self._listings.get(folder)
        if kept is not None and kept[0] == changed:
            return kept[1]
        settled = wall_ns() - changed > 50_000_000
        labels = self._scan(path) if folder else (name for name in self._scan(path) if not name.startswith("."))
        if passed or not settled:
            return sorted(name for name in labels if name >= passed or passed.startswith(name))
        names = sorted(labels)
        with self._keeping:
            self._listings.pop(folder, None)
            self._listings[folder] = (changed, names)
            while sum(len(one) for _, one in self._listings.values()) > MOST_NAMES:
                self._listings.popitem(last=False)
        return names

    def _scan(self, path: str) -> Iterator[str]:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(path) as entries:
            for entry in entries:
                yield f"{entry.name}/" if entry.is_dir(follow_symlinks=False) else entry.name

    def _lock(self, key: str) -> FileLock:
        return self._locks[zlib.crc32(key.encode()) % LOCKS]

    def _check_timestamps(self) -> None:
        probe = self._temporary_name()
        moment = 1_000_000_000_123_456_789
        with open(probe, "xb") as file:
            os.utime(file.fileno(), ns=(moment, moment))
        kept = os.stat(probe).st_mtime_ns
        os.unlink(probe)
        if kept != moment:
            raise ConfigError(
                f"the file system of {self._root!r} does not keep times to the nanosecond, which file:// needs to tell "
                "writes apart; use another directory (ext4, xfs, btrfs, tmpfs and APFS do)"
            )

    def _sweep_temporary(self) -> None:
        """Remove what writers that died left behind."""
        with contextlib.suppress(OSError), os.scandir(self._temporary) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    if entry.stat().st_ctime_ns < wall_ns() - TEMPORARY_AGE:
                        os.unlink(entry.path)

    @contextlib.contextmanager
    def _explained(self, what: str) -> Generator[None]:
        try:
            yield
        except PermissionError as error:
            raise PermissionDenied(
                f"cannot {what} under {self._root!r}: {error.strerror}; check the directory's owner and mode"
            ) from error
        except OSError as error:
            if error.errno == errno.ENOSPC:
                raise StoreUnavailable(
                    f"no space left on the disk of {self._root!r}; nothing was written, free some and try again"
                ) from error
            if error.errno == errno.EROFS:
                raise PermissionDenied(f"{self._root!r} is on a read-only file system; mount it writable") from error
            raise StoreUnavailable(f"cannot {what} under {self._root!r}: {error}; check the disk") from error


def _etag_of(moment: int, size: int) -> str:
    return f"{moment:x}-{size:x}"


def _etag(stat: os.stat_result) -> str:
    return _etag_of(stat.st_mtime_ns, stat.st_size)


def _sync(folder: str) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
