"""Names and tokens: never twice, in any thread, in any process."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

from brigade.ids import Ids


def test_tokens_are_never_made_twice() -> None:
    ids = Ids()
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: ids.token(), range(5_000)))
    assert len(set(made)) == len(made)
    assert {len(token) for token in made} == {32}


def test_a_forked_process_makes_tokens_and_nonces_of_its_own() -> None:
    ids = Ids()
    ids.token()
    reads, writes = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(writes, " ".join([ids.token(), ids.nonce(), str(ids.bits(64))]).encode())
        os._exit(0)
    os.close(writes)
    with os.fdopen(reads) as answer:
        theirs = answer.read().split()
    os.waitpid(pid, 0)
    mine = {ids.token() for _ in range(200)} | {ids.nonce(), str(ids.bits(64))}
    assert len(theirs) == 3
    assert mine.isdisjoint(theirs)


def test_a_seed_makes_the_same_tokens_again() -> None:
    first, second = Ids(7), Ids(7)
    assert [first.token() for _ in range(100)] == [second.token() for _ in range(100)]
