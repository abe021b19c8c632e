"""Messages between processes: whole, bounded, and never trusted."""

import asyncio
import socket
import struct
import time

import pytest

from tests.serving.running import Running, png
from vitrail.serving.frames import (
    MAX_BUFFERS,
    BrokenFrame,
    pack,
    parse_header,
    parse_lengths,
    parse_start,
    read_async,
    read_blocking,
    write_blocking,
)


def test_a_message_arrives_as_it_was_sent() -> None:
    one, two = socket.socketpair()
    with one, two:
        write_blocking(one, {"id": 1, "name": "고양이"}, [b"", b"abc", bytes(10_000)])
        assert read_blocking(two) == ({"id": 1, "name": "고양이"}, [b"", b"abc", bytes(10_000)])
        one.close()
        with pytest.raises(EOFError):
            read_blocking(two)


def test_the_event_loop_reads_the_same() -> None:
    async def main() -> None:
        reader = asyncio.StreamReader()
        reader.feed_data(b"".join(bytes(part) for part in pack({"id": 2}, [b"x" * 100])))
        reader.feed_eof()
        assert await read_async(reader) == ({"id": 2}, [b"x" * 100])
        with pytest.raises(asyncio.IncompleteReadError):
            await read_async(reader)

    asyncio.run(main())


def test_what_is_too_long_or_no_json_is_refused() -> None:
    with pytest.raises(BrokenFrame):
        parse_start(struct.pack("<II", 2**31, 0))
    with pytest.raises(BrokenFrame):
        parse_start(struct.pack("<II", 1, MAX_BUFFERS + 1))
    with pytest.raises(BrokenFrame):
        parse_lengths(struct.pack("<2Q", 2**31, 2**31))
    for text in (b"{", b"[]", b"\xff"):
        with pytest.raises(BrokenFrame):
            parse_header(text)


def test_a_process_that_sends_nonsense_is_replaced(service: Running) -> None:
    """Its own end of the connection, taken from it, says what no process would."""
    pool = service.service.registry.models["pets"].pool
    assert pool is not None
    child = pool.workers[0].child
    before = child.pid
    reader = child.reader
    assert reader is not None
    nonsense = b"".join(bytes(part) for part in pack({"id": 10**9, "results": []}))
    service.loop.call_soon_threadsafe(reader.feed_data, nonsense)
    end = time.monotonic() + 30
    while not pool.workers or pool.workers[0].child.pid == before:
        assert time.monotonic() < end
        time.sleep(0.01)
    assert service.form("/v1/predict", [png(9)]).status == 200
