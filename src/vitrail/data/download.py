"""Images from the web: by http and https, from public addresses, within limits of bytes and time.

One deadline covers everything, from looking up the first name to the last byte after the last
redirect. Each address is looked up once, checked, and that very address is connected to, so that a
name cannot mean a public machine when it is checked and a private one when it is used. Behind a
proxy it is the proxy that looks names up, and decides what may be reached.
"""

import base64
import ipaddress
import os
import socket
import string
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any
from urllib.parse import SplitResult, quote, unquote, urljoin, urlsplit
from urllib.request import getproxies, proxy_bypass

from vitrail.data.images import MOST_BYTES, BadImage, check_bytes

PATIENCE = 20.0  # seconds that a server may stay silent
MOST_SECONDS = 120.0  # for one image, with all lookups, redirects and headers
MOST_REDIRECTS = 5
CHUNK = 2**18  # bytes
PORTS = {"http": 80, "https": 443}
MOVED = (301, 302, 303, 307, 308)
ALLOW_PRIVATE = "VITRAIL_ALLOW_PRIVATE_ADDRESSES"  # "1": this machine and its network too


class Refused(Exception):  # noqa: N818 - the reason why an address is not fetched
    pass


def download(
    address: str,
    *,
    hosts: Collection[str] | None = None,
    max_bytes: int | None = None,
    seconds: float | None = None,
) -> bytes:
    """What a server has under an address, or `BadImage`. With `hosts` ("host", or "host:port" for
    another port than that of the scheme) every address on the way must be of one of them, and no
    proxy is used, so that the check of addresses is this process's own. `max_bytes` and `seconds`
    are limits below the usual ones."""
    max_bytes = MOST_BYTES if max_bytes is None else max_bytes
    seconds = MOST_SECONDS if seconds is None else seconds
    deadline = Deadline(seconds)
    try:
        where = address
        for _ in range(MOST_REDIRECTS + 1):
            with deadline.watching(), _response(where, deadline, hosts) as response:
                if response.status in MOVED and (to := response.headers.get("Location")):
                    where = urljoin(where, to)
                    continue
                if response.status != 200:
                    status = f"{response.status} {response.reason}".rstrip()
                    raise Refused(f"cannot be fetched: the server responds {status}")
                data = _body(response, address, max_bytes)
                if deadline.passed:  # then it may have been cut off
                    raise TimeoutError
                return data
        raise Refused(f"cannot be fetched: more than {MOST_REDIRECTS} redirects")
    except Refused as refusal:
        reason = str(refusal)
    except (OSError, HTTPException, ValueError) as error:
        cause = getattr(error, "strerror", None) or str(error) or type(error).__name__
        reason = f"cannot be fetched: {cause}"
    if deadline.passed:
        reason = f"took longer than {seconds:g} s"
    raise BadImage(address, reason)


@dataclass
class Deadline:
    """When a download has to be over; then its connection is closed, whatever it waits for."""

    seconds: float
    end: float = field(init=False)
    open: socket.socket | None = None  # a second handle: TLS takes the first one away

    def __post_init__(self) -> None:
        self.end = time.monotonic() + self.seconds

    @property
    def left(self) -> float:
        return max(self.end - time.monotonic(), 0.001)

    @property
    def passed(self) -> bool:
        return time.monotonic() >= self.end

    @contextmanager
    def watching(self) -> Iterator[None]:
        """A connection that is passed to `limit` in here lasts no longer."""
        timer = threading.Timer(self.left, self._close)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            if self.open is not None:
                self.open.close()
                self.open = None

    def limit(self, connection: socket.socket) -> None:
        self.open = connection.dup()

    def _close(self) -> None:
        if (connection := self.open) is not None:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


@contextmanager
def _response(
    address: str, deadline: Deadline, hosts: Collection[str] | None
) -> Iterator[HTTPResponse]:
    """The head of a server's response, its body still to be read."""
    url = urlsplit(address)
    if url.scheme not in PORTS or not url.hostname:
        raise Refused("cannot be fetched: an address must be http://HOST/… or https://HOST/…")
    if hosts is not None and _host_and_port(url) not in hosts:
        raise Refused(f"cannot be fetched: the host {_host_and_port(url)} is not allowed")
    target = quote(url.path or "/", safe=string.punctuation)
    if url.query:
        target += f"?{quote(url.query, safe=string.punctuation)}"
    headers = {"User-Agent": "vitrail", "Connection": "close"}
    proxy = getproxies().get(url.scheme) if hosts is None else None
    proxy_url = None if proxy is None or proxy_bypass(url.netloc) else urlsplit(_with_scheme(proxy))
    connection = _connection(url, proxy_url, deadline, headers)
    if proxy_url is not None and url.scheme == "http":
        target = f"http://{url.netloc}{target}"
    try:
        connection.request("GET", target, headers=headers)
        with connection.getresponse() as response:  # a redirect's body is not read
            yield response
    finally:
        connection.close()


def _host_and_port(url: SplitResult) -> str:
    """The host of an address, with its port where that is not the scheme's."""
    host = (url.hostname or "").lower()
    return host if url.port in (None, PORTS[url.scheme]) else f"{host}:{url.port}"


def _connection(
    url: SplitResult, proxy: SplitResult | None, deadline: Deadline, headers: dict[str, str]
) -> HTTPConnection:
    """To the server, or to the proxy; to an address that was looked up and checked here."""
    assert url.hostname is not None
    host = url.hostname.encode("idna").decode() if not url.hostname.isascii() else url.hostname
    port = url.port or PORTS[url.scheme]
    kind = HTTPSConnection if url.scheme == "https" else HTTPConnection
    timeout = min(PATIENCE, deadline.left)
    if proxy is None:
        addresses = _public(_look_up(host, port, deadline))
        connection = kind(host, port, timeout=timeout)
    else:
        _public([host], literal=True)
        assert proxy.hostname is not None
        via = proxy.port or 8080
        addresses = _look_up(proxy.hostname, via, deadline)
        connection = kind(proxy.hostname, via, timeout=timeout)
        if proxy.username:
            pair = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}".encode()
            headers["Proxy-Authorization"] = f"Basic {base64.b64encode(pair).decode()}"
        if url.scheme == "https":
            authorised = {k: headers.pop(k) for k in list(headers) if k.startswith("Proxy")}
            connection.set_tunnel(host, port, headers=authorised)

    def connect(place: tuple[str, int], *_: Any) -> socket.socket:
        problem: OSError | None = None
        for one in addresses:
            try:
                opened = socket.create_connection((one, place[1]), min(PATIENCE, deadline.left))
            except OSError as error:
                problem = error
            else:
                deadline.limit(opened)
                return opened
        assert problem is not None, "there is an address"
        raise problem

    connection._create_connection = connect  # type: ignore[attr-defined]
    return connection


def _look_up(host: str, port: int, deadline: Deadline) -> list[str]:
    """The addresses of a name; the system's own lookup has no timeout."""
    found: list[list[str] | OSError] = []

    def ask() -> None:
        try:
            known = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            found.append(list(dict.fromkeys(str(row[4][0]) for row in known)))
        except (OSError, UnicodeError) as error:
            found.append(error if isinstance(error, OSError) else OSError(str(error)))

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(min(PATIENCE, deadline.left))
    if not found:
        raise TimeoutError("looking up its name timed out")
    if isinstance(found[0], OSError):
        raise found[0]
    if not found[0]:
        raise OSError(f"{host} has no address")
    return found[0]


def _public(addresses: list[str], *, literal: bool = False) -> list[str]:
    """Those that anybody may reach; `literal` passes over names."""
    if os.environ.get(ALLOW_PRIVATE) == "1":
        return addresses
    public = [one for one in addresses if is_public(one, literal=literal)]
    if not public:
        raise Refused(
            f"cannot be fetched: {addresses[0]} is no public address (set {ALLOW_PRIVATE}=1 to "
            "allow this machine's network)"
        )
    return public


def is_public(address: str, *, literal: bool = False) -> bool:
    """Whether an address belongs to the internet: not to this machine, its network, or to nobody.

    >>> is_public("8.8.8.8"), is_public("127.0.0.1"), is_public("::ffff:10.0.0.1")
    (True, False, False)
    """
    if literal and address.lower().rstrip(".").endswith("localhost"):
        return False
    try:
        known = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return literal
    if isinstance(known, ipaddress.IPv6Address):
        inner = known.ipv4_mapped or known.sixtofour
        if known in ipaddress.ip_network("64:ff9b::/96"):  # NAT64: the last 32 bits
            inner = ipaddress.IPv4Address(int(known) & 0xFFFFFFFF)
        if inner is not None:
            return is_public(str(inner))
    return known.is_global and not known.is_multicast


def _body(response: HTTPResponse, address: str, max_bytes: int) -> bytes:
    stated = response.headers.get("Content-Length", "")
    length = int(stated) if stated.isdecimal() else 0
    if length > max_bytes:
        check_bytes(length, address, max_bytes)
    data = bytearray()
    while chunk := response.read1(CHUNK):  # what has come: `read` waits until it is all
        data += chunk
        if len(data) > max_bytes:
            check_bytes(len(data), address, max_bytes)
    if len(data) < length:
        raise Refused(f"cannot be fetched: {len(data)} of {length} bytes came")
    return bytes(data)


def _with_scheme(proxy: str) -> str:
    return proxy if "://" in proxy else f"http://{proxy}"
