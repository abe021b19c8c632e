"""HTTP to a service: connections that stay open, one deadline for each call, retries while the
service is full. Standard library alone; safe to use from several threads."""

import json
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from threading import Lock
from urllib.parse import quote, unquote, urlsplit
from weakref import finalize

from vitrail.core.errors import UserError
from vitrail.core.ranges import check

KEY_VARIABLE = "VITRAIL_API_KEY"  # environment variable with the key of a service
BUSY = (429, 503)  # the service is full, or a worker is starting: the same request may pass later
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0  # seconds, where the service does not say how long
MOST_BYTES = 2**30  # of one response
MOST_IDLE = 16  # connections that are kept open
CHUNK = 2**20
LOST = (BrokenPipeError, ConnectionResetError)  # the other side has closed


class ServiceError(UserError):
    """A service that cannot be reached or that refuses a request; `status` is that of HTTP, 0 where
    there was no response."""

    def __init__(self, sentence: str, status: int = 0) -> None:
        super().__init__(sentence)
        self.status = status


@dataclass(frozen=True)
class ServiceAddress:
    """Where a service is, and which of its models is meant; None is its first one."""

    scheme: str
    host: str
    port: int | None
    prefix: str  # of all paths, for a service behind a gateway
    model: str | None = None

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = "" if self.port is None else f":{self.port}"
        return f"{self.scheme}://{host}{port}{self.prefix}"

    def __str__(self) -> str:
        return self.url if self.model is None else f"{self.url}#{self.model}"


def parse_address(text: str) -> ServiceAddress:
    """The address of a service, or of one of its models: …/models/NAME or …#NAME.

    >>> parse_address("http://127.0.0.1:8000").url
    'http://127.0.0.1:8000'
    >>> parse_address("http://gpu:8000/v1/models/pets").model, str(parse_address("http://gpu#pets"))
    ('pets', 'http://gpu#pets')
    """
    if not isinstance(text, str):
        raise UserError(f"a service is addressed as http://HOST:PORT, got {text!r}")
    try:
        parts = urlsplit(text.strip())
        port = parts.port
    except ValueError as error:
        raise UserError(f"{text}: no address of a service: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UserError(f"a service is addressed as http://HOST:PORT, got {text!r}")
    if parts.username is not None or parts.query:
        raise UserError(
            f"the address of a service has no password and no query: give the key as api_key or in "
            f"{KEY_VARIABLE}"
        )
    path, found, name = parts.path.rpartition("/models/")
    prefix, name = (path, unquote(name.strip("/"))) if found else (parts.path, "")
    prefix = prefix.rstrip("/").removesuffix("/v1").removesuffix("/v2")
    if name and parts.fragment and name != parts.fragment:
        raise UserError(f"{text}: names two models, {name} and {parts.fragment}: leave one out")
    model = name or unquote(parts.fragment) or None
    return ServiceAddress(parts.scheme, parts.hostname, port, prefix, model)


@dataclass(frozen=True)
class Response:
    """A whole response; header names are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes


@dataclass
class Deadline:
    """The end of a call with all its retries."""

    seconds: float
    end: float = field(init=False)

    def __post_init__(self) -> None:
        self.end = time.monotonic() + self.seconds

    @property
    def left(self) -> float:
        return self.end - time.monotonic()


class ServiceHttp:
    """Requests to one service. A call ends within `timeout` seconds, whatever is tried in it."""

    def __init__(self, address: ServiceAddress, *, api_key: str | None, timeout: float) -> None:
        check("timeout", timeout, above=0)
        if api_key is not None and not is_key(api_key):
            raise UserError("an API key must be printable ASCII letters in one line")
        self.address, self.timeout = address, timeout
        self._key = api_key
        self._idle: list[HTTPConnection] = []
        self._lock = Lock()
        finalize(self, close_all, self._idle)  # whoever forgets a client leaves no connection open

    def request(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        retry: bool = True,
    ) -> Response:
        """The response to a request, whatever its status; a service that is full is asked again
        until the deadline."""
        deadline, attempt = Deadline(self.timeout), 0
        sent = {"User-Agent": "vitrail", "Accept-Encoding": "identity", **(headers or {})}
        if self._key is not None:
            sent["Authorization"] = f"Bearer {self._key}"
        while True:
            response = self._send(method, self.address.prefix + path, body, sent, deadline)
            if response.status not in BUSY or not retry:
                return response
            pause = pause_after(response, attempt)
            if pause >= deadline.left:
                return response
            time.sleep(pause)
            attempt += 1

    def _send(
        self,
        method: str,
        target: str,
        body: bytes | None,
        headers: Mapping[str, str],
        deadline: Deadline,
    ) -> Response:
        """One attempt. A connection that was kept open may have been closed meanwhile: then the
        request, which changes nothing at the service, is sent again on a new one."""
        while True:
            connection, is_new = self._connection()
            try:
                response = exchange(connection, method, target, body, headers, deadline)
            except (OSError, HTTPException) as error:
                connection.close()
                if is_new or not isinstance(error, LOST) or deadline.left <= 0:
                    raise ServiceError(self._why_unreachable(error)) from None
            else:
                self._keep(connection, response)
                return response

    def _connection(self) -> tuple[HTTPConnection, bool]:
        with self._lock:
            if self._idle:
                return self._idle.pop(), False
        kind = HTTPSConnection if self.address.scheme == "https" else HTTPConnection
        return kind(self.address.host, self.address.port, timeout=self.timeout), True

    def _keep(self, connection: HTTPConnection, response: Response) -> None:
        closes = "close" in response.headers.get("connection", "").lower()
        with self._lock:
            if not closes and connection.sock is not None and len(self._idle) < MOST_IDLE:
                self._idle.append(connection)
                return
        connection.close()

    def _why_unreachable(self, error: Exception) -> str:
        if isinstance(error, TimeoutError):
            return f"{self.address.url}: no response within {self.timeout:g} s"
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        return f"{self.address.url}: no service responds there: {reason}"

    def close(self) -> None:
        with self._lock:
            close_all(self._idle)


def is_key(key: object) -> bool:
    return isinstance(key, str) and key.isascii() and key.isprintable()


def close_all(connections: list[HTTPConnection]) -> None:
    while connections:
        connections.pop().close()


def exchange(
    connection: HTTPConnection,
    method: str,
    target: str,
    body: bytes | None,
    headers: Mapping[str, str],
    deadline: Deadline,
) -> Response:
    """Send a request and read its response. A service that refuses a large body responds before all
    of it is sent: that response counts, not the broken pipe."""
    limit(connection, deadline)
    cut_off = False
    try:
        connection.request(method, target, body=body, headers=dict(headers))
    except (BrokenPipeError, ConnectionResetError):
        if body is None:
            raise
        cut_off = True
    limit(connection, deadline)
    with connection.getresponse() as response:
        data = read_body(response, connection, deadline)
        found = {name.lower(): value for name, value in response.getheaders()}
    if cut_off:
        connection.close()
    return Response(response.status, found, data)


def read_body(response: HTTPResponse, connection: HTTPConnection, deadline: Deadline) -> bytes:
    data = bytearray()
    while len(data) <= MOST_BYTES:
        limit(connection, deadline)
        chunk = response.read1(CHUNK)
        if not chunk:
            break
        data += chunk
    if len(data) > MOST_BYTES:
        raise HTTPException(f"its response is larger than {MOST_BYTES} bytes")
    stated = response.headers.get("Content-Length", "")
    if stated.isdecimal() and len(data) < int(stated):
        raise HTTPException(f"{len(data)} of {stated} bytes came")
    return bytes(data)


def limit(connection: HTTPConnection, deadline: Deadline) -> None:
    """The next step of a connection may take as long as the call has left."""
    left = deadline.left
    if left <= 0:
        raise TimeoutError
    connection.timeout = left
    if connection.sock is not None:
        connection.sock.settimeout(left)


def pause_after(response: Response, attempt: int) -> float:
    """Seconds to wait before the next attempt: as the service says, else twice as long each time;
    a little more at random, so that clients do not come back all at once."""
    stated = response.headers.get("retry-after", "")
    try:
        pause = max(float(stated), 0.0)
    except ValueError:
        pause = min(FIRST_PAUSE * 2**attempt, LONGEST_PAUSE)
    return pause * random.uniform(1.0, 1.2)


def refusal(address: ServiceAddress, response: Response) -> ServiceError:
    """What a service says when it does not do what was asked, as one sentence."""
    status, sentence = response.status, sentence_of(response)
    if status in (401, 403):
        sentence = f"{sentence}: give its key as api_key, or set {KEY_VARIABLE}"
    elif status in BUSY:
        sentence = f"{sentence} (status {status}): try again later, or with a longer timeout"
    elif status >= 500:
        sentence = f"the service failed: {sentence} (status {status})"
    return ServiceError(f"{address.url}: {sentence}", status)


def sentence_of(response: Response) -> str:
    try:
        found = json.loads(response.body)
        sentence = found["error"] if isinstance(found, dict) else None
    except (ValueError, KeyError, RecursionError):
        sentence = None
    if isinstance(sentence, str) and sentence:
        return sentence
    return f"responds with status {response.status}, which is not what a Vitrail service says"


def path_of(*parts: str) -> str:
    """
    >>> path_of("v2", "models", "a/b", "infer")
    '/v2/models/a%2Fb/infer'
    """
    return "".join(f"/{quote(part, safe='')}" for part in parts)
