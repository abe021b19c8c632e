"""The end of a listener: those in its queue are taken, nobody new gets in."""

import socket
import sys
from collections.abc import Iterator

import pytest

from vitrail.serving.accept_queue import attach_filter, stop_connections, take_connections

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="filters are Linux's")


@pytest.fixture(params=["127.0.0.1", "::1"])
def listener(request: pytest.FixtureRequest) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in request.param else socket.AF_INET
    with socket.socket(family) as found:
        try:
            found.bind((request.param, 0))
        except OSError:
            pytest.skip(f"{request.param} is not there")
        found.listen(16)
        found.setblocking(False)
        yield found


def connect(listener: socket.socket, seconds: float = 5) -> socket.socket:
    client = socket.socket(listener.family)
    client.settimeout(seconds)
    try:
        client.connect(listener.getsockname())
    except OSError:
        client.close()
        raise
    return client


def test_those_in_the_queue_are_taken_with_what_they_sent(listener: socket.socket) -> None:
    clients = [connect(listener) for _ in range(5)]
    for number, client in enumerate(clients):
        client.sendall(b"%d" % number)
    stop_connections(listener)
    taken = take_connections(listener)
    listener.close()
    assert sorted(one.recv(9) for one in taken) == [b"0", b"1", b"2", b"3", b"4"]
    for one in taken:
        one.sendall(b"answer")  # after the end of the listener
        one.close()
    for client in clients:
        assert client.recv(9) == b"answer"
        client.close()


@linux
def test_nobody_new_gets_into_the_queue(listener: socket.socket) -> None:
    with connect(listener) as before:
        if not attach_filter(listener):
            pytest.skip("this system refuses filters of sockets")
        with pytest.raises(TimeoutError):
            connect(listener, seconds=0.2)
        before.sendall(b"still here")
        (taken,) = take_connections(listener)
        assert taken.recv(20) == b"still here"
        taken.close()
    assert take_connections(listener) == []


def test_one_that_has_left_is_passed_over(listener: socket.socket) -> None:
    clients = [connect(listener) for _ in range(3)]
    reset = b"\x01\x00\x00\x00\x00\x00\x00\x00"
    clients[0].setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
    clients[0].close()
    stop_connections(listener)
    taken = take_connections(listener)
    for client in clients[1:]:
        client.sendall(b"here")
    answers = []
    for one in taken:
        one.setblocking(True)
        try:
            answers.append(one.recv(9))
        except ConnectionResetError:
            answers.append(b"")
        one.close()
    assert answers.count(b"here") == 2
    for client in clients[1:]:
        client.close()
