"""The proxy of the tests leaves nothing behind, whatever is under way when it ends."""

from __future__ import annotations

import socket

import pytest

from brigade.testing.servers.proxy import Fault, Proxy
from leftovers import nothing_left_open

MORE_THAN_SOCKETS_HOLD = 32 * 1024 * 1024
HEAD = b"PUT /b/k HTTP/1.1\r\nContent-Length: %d\r\n\r\n"


@pytest.mark.parametrize("fault", [None, Fault(applied=True, late=0.01)], ids=["asked", "late"])
def test_a_request_that_nobody_reads_is_given_up_at_the_end(fault: Fault | None) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, nothing_left_open():
        with Proxy(f"http://127.0.0.1:{server.getsockname()[1]}", decide=lambda _: fault) as proxy:
            client = socket.create_connection(("127.0.0.1", proxy.port))
            client.sendall(HEAD % MORE_THAN_SOCKETS_HOLD + bytes(MORE_THAN_SOCKETS_HOLD))
            upstream, _ = server.accept()
            assert upstream.recv(4) == b"PUT "
        client.close()
        upstream.close()
        del proxy


def test_an_answer_that_nobody_reads_is_given_up_at_the_end() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, nothing_left_open():
        with Proxy(f"http://127.0.0.1:{server.getsockname()[1]}") as proxy:
            client = socket.create_connection(("127.0.0.1", proxy.port))
            client.sendall(b"GET /b/k HTTP/1.1\r\n\r\n")
            upstream, _ = server.accept()
            upstream.recv(4)
            answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % MORE_THAN_SOCKETS_HOLD
            upstream.sendall(answer + bytes(MORE_THAN_SOCKETS_HOLD))
            assert client.recv(4) == b"HTTP"
        client.close()
        upstream.close()
        del proxy
