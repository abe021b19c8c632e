"""The end of a listener: nobody new gets in, and everybody who is in is taken out.

A connection that the kernel has accepted is in the listener's queue, often with its request.
Closing the listener resets it. So first no new one may enter the queue, then all are taken from it.
"""

import contextlib
import ctypes
import socket
import struct
import sys

SO_ATTACH_FILTER = 26  # Linux: a socket's own packet filter
# Classic BPF on the TCP header: drop packets with SYN and without ACK, which begin a connection.
# The last packet of a handshake that has begun passes. A client whose SYN is dropped sends it
# again after a second, and is refused then.
NO_NEW_CONNECTIONS = (
    (0x30, 0, 0, 13),  # load the byte of flags
    (0x54, 0, 0, 0x12),  # and SYN | ACK
    (0x15, 0, 1, 0x02),  # is it SYN alone?
    (0x06, 0, 0, 0),  # then drop it
    (0x06, 0, 0, 0xFFFFFFFF),  # else take all of it
)


def stop_connections(listener: socket.socket) -> bool:
    """No more connections into the queue. False where the system has no filters: then the queue is
    made as short as can be, and one that comes between its end and the listener's is reset."""
    if attach_filter(listener):
        return True
    listener.listen(0)
    return False


def attach_filter(listener: socket.socket) -> bool:
    if not sys.platform.startswith("linux"):
        return False
    code = b"".join(struct.pack("HBBI", *step) for step in NO_NEW_CONNECTIONS)
    program = ctypes.create_string_buffer(code)
    filter_of = struct.pack("HL", len(NO_NEW_CONNECTIONS), ctypes.addressof(program))
    try:
        listener.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, filter_of)
    except OSError:
        return False  # a sandbox may refuse it
    return True


def take_connections(listener: socket.socket) -> list[socket.socket]:
    """Every connection in the queue of a listener that does not block."""
    found = list[socket.socket]()
    with contextlib.suppress(OSError):  # EAGAIN: the queue is empty; or no more files may be open
        while True:
            with contextlib.suppress(ConnectionAbortedError):  # one that has left is passed over
                found.append(listener.accept()[0])
    for one in found:
        one.setblocking(False)
    return found
