"""Messages between the service and its processes: a JSON header and byte buffers, never a pickle.

    uint32   length of the header
    uint32   number of buffers
    uint64   length of each buffer
    header, buffers

A process that decodes images of strangers may be taken over by one. What it sends is data here, not
code.
"""

import asyncio
import json
import socket
import struct
from collections.abc import Sequence
from typing import Any, TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview
Message: TypeAlias = tuple[dict[str, Any], list[Buffer]]

START = struct.Struct("<II")
MAX_HEADER = 2**26  # bytes: labels of all classes fit many times
MAX_BUFFERS = 2**16
MAX_BYTES = 2**31  # of all buffers of a message


class BrokenFrame(ConnectionError):  # noqa: N818 - named after what is broken
    """Bytes that are no message: the other side is not to be trusted any more."""


def pack(header: dict[str, Any], buffers: Sequence[Buffer] = ()) -> list[Buffer]:
    """The parts of a message, in the order in which they are written.

    >>> b"".join(pack({"id": 1}, [b"abc"]))[8:]
    b'\\x03\\x00\\x00\\x00\\x00\\x00\\x00\\x00{"id": 1}abc'
    """
    text = json.dumps(header, allow_nan=False).encode()
    lengths = struct.pack(f"<{len(buffers)}Q", *(len(one) for one in buffers))
    return [START.pack(len(text), len(buffers)) + lengths + text, *buffers]


def parse_start(data: bytes) -> tuple[int, int]:
    """The length of the header, and how many buffers there are."""
    length, count = START.unpack(data)
    if length > MAX_HEADER or count > MAX_BUFFERS:
        raise BrokenFrame(f"a message has a header of {length} bytes and {count} buffers")
    return length, count


def parse_lengths(data: bytes) -> list[int]:
    lengths = [*struct.unpack(f"<{len(data) // 8}Q", data)]
    if sum(lengths) > MAX_BYTES:
        raise BrokenFrame(f"a message has {sum(lengths)} bytes")
    return lengths


def parse_header(data: Buffer) -> dict[str, Any]:
    try:
        header = json.loads(bytes(data))
    except ValueError:
        raise BrokenFrame("the header of a message is no JSON") from None
    if not isinstance(header, dict):
        raise BrokenFrame("the header of a message is no JSON object")
    return header


async def read_async(reader: asyncio.StreamReader) -> Message:
    """The next message; `IncompleteReadError` or `ConnectionError` at the end."""
    length, count = parse_start(await reader.readexactly(START.size))
    lengths = parse_lengths(await reader.readexactly(8 * count))
    header = parse_header(await reader.readexactly(length))
    return header, [await reader.readexactly(size) for size in lengths]


def read_blocking(channel: socket.socket) -> Message:
    """The next message, in a process that has nothing else to do; `EOFError` at the end."""
    length, count = parse_start(receive(channel, START.size))
    lengths = parse_lengths(receive(channel, 8 * count))
    header = parse_header(receive(channel, length))
    return header, [receive(channel, size) for size in lengths]


def write_blocking(
    channel: socket.socket, header: dict[str, Any], buffers: Sequence[Buffer] = ()
) -> None:
    """Send a message; the caller makes sure that nobody else does so at the same time."""
    for part in pack(header, buffers):
        channel.sendall(part)


def receive(channel: socket.socket, size: int) -> bytes:
    """Exactly so many bytes."""
    data = bytearray(size)
    view, done = memoryview(data), 0
    while done < size:
        count = channel.recv_into(view[done:])
        if not count:
            raise EOFError("the other side has closed the connection")
        done += count
    return bytes(data)
