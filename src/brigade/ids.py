"""The only module that makes randomness: nonces, tokens, unique names and jitter."""

from __future__ import annotations

import os
import random
from hashlib import blake2b

__all__ = ["Ids", "digest", "secret_bytes"]

TOKEN = 16
TOKENS = 64
"""Bytes of a token, and how many are fetched at a time."""
_forks = [0]
"""One item for each fork that lies between this process and the one that imported this, and one more."""
os.register_at_fork(after_in_child=lambda: _forks.append(0))


def digest(*parts: str, size: int = 8) -> str:
    """A stable hex name derived from the parts; `size` bytes, so `2 * size` digits."""
    return blake2b("\0".join(parts).encode(), digest_size=size).hexdigest()


def secret_bytes(size: int) -> bytes:
    """Bytes that nobody can guess: keys and nonces."""
    return os.urandom(size)


class Ids:
    """A source of unique names. A seed makes it repeatable, for simulations; without one it is the system's."""

    def __init__(self, seed: int | None = None) -> None:
        self._rng: random.Random = random.SystemRandom() if seed is None else random.Random(seed)
        self._fast = random.Random(self._rng.getrandbits(64))
        self._forks = len(_forks)
        self._seeded = seed is not None
        self._prefix = f"{self._rng.getrandbits(64):016x}"
        self._count = 0
        self._last_ms = 0
        self._sequence = 0
        self._random: list[bytes] = []

    def nonce(self) -> str:
        """Different from every nonce ever made: a random prefix for each process, then a counter."""
        if self._forks != len(_forks):
            self._renew_after_fork()
        self._count += 1
        return f"{self._prefix}{self._count:x}"

    def token(self) -> str:
        """An unguessable lease token: 128 random bits. The system is asked for many at a time."""
        if self._seeded:
            return f"{self._rng.getrandbits(128):032x}"
        if self._forks != len(_forks):
            self._renew_after_fork()
        try:
            return self._random.pop().hex()
        except IndexError:
            fresh = os.urandom(TOKEN * TOKENS)
            self._random = [fresh[start : start + TOKEN] for start in range(TOKEN, len(fresh), TOKEN)]
            return fresh[:TOKEN].hex()

    def bits(self, size: int) -> int:
        if self._forks != len(_forks):
            self._renew_after_fork()
        return self._fast.getrandbits(size)

    def uniform(self, low: float, high: float) -> float:
        return self._fast.uniform(low, high)

    def below(self, limit: int) -> int:
        return self._fast.randrange(limit)

    def tick(self, now_ms: int) -> tuple[int, int]:
        """A time that never goes back and a sequence number inside that millisecond: the order of enqueues."""
        if now_ms > self._last_ms:
            self._last_ms, self._sequence = now_ms, 0
        else:
            self._sequence += 1
            if self._sequence > 0xFFFF:
                self._last_ms, self._sequence = self._last_ms + 1, 0
        return self._last_ms, self._sequence

    def _renew_after_fork(self) -> None:
        """What a child makes is its own. A seed stays what it is."""
        if self._seeded:
            self._forks = len(_forks)
        else:
            self.__init__()
