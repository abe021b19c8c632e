"""A small server of the web page for tests: its files, and real answers of `serving.operations`."""

import json
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from email.parser import BytesParser
from email.policy import HTTP
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from PIL import Image

from vitrail.core.errors import UserError
from vitrail.core.packed import Packed
from vitrail.models.model import Model
from vitrail.serving.operations import OPERATIONS, File
from vitrail.serving.operations.context import Context
from vitrail.serving.operations.data_context import open_data_context
from vitrail.serving.page import find_page

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "connect-src 'self'; media-src 'self' blob:"
)
Images = Mapping[str, Image.Image]


class WindowServer(ThreadingHTTPServer):
    """Models by their names, sample images by theirs, images of the data, and the addresses that
    were asked for."""

    def __init__(
        self, models: Mapping[str, Model], samples: Images, data: str | Path | None = None
    ) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.models, self.samples = models, samples
        self.contexts = {
            name: Context(model, None if data is None else open_data_context(data, model), name)
            for name, model in models.items()
        }
        self.requests: list[str] = []
        self.loading = 0  # answers that still say that the models are being loaded
        self.slow = set[str]()  # models that are being loaded when the others are ready
        self.late = 0  # lists of samples that are still refused
        self.lock = threading.Lock()

    @property
    def questions(self) -> int:
        """How often something was computed: files and small pictures may come late."""
        return sum(one.startswith("POST") for one in self.requests)

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/"


class Handler(BaseHTTPRequestHandler):
    server: WindowServer

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        self.server.requests.append(f"GET {path}")
        if path == "/v1/models":
            slow = set(self.server.models) if self.server.loading > 0 else self.server.slow
            self.server.loading -= 1
            listed = [
                {**facts(name, model), "state": "loading" if name in slow else "ready"}
                for name, model in self.server.models.items()
            ]
            self.send_json({"models": listed})
        elif path == "/v1/samples" and self.server.late > 0:
            self.server.late -= 1
            self.send_json({"error": "no answer in time", "code": 504}, 504)
        elif path == "/v1/samples":
            names = self.server.samples
            self.send_json(
                {"samples": [{"id": n, "name": n, "url": f"v1/samples/{n}"} for n in names]}
            )
        elif path.startswith("/v1/samples/"):
            out = BytesIO()
            self.server.samples[path.rpartition("/")[2]].save(out, "PNG")
            self.send(out.getvalue(), "image/png")
        elif read := find_read(path):
            self.answer_read(*read)
        elif found := find_page(path):
            self.send(found.content, found.media)
        else:
            self.send_json({"error": f"nothing is at {path}", "code": 404}, 404)

    def answer_read(self, name: str, fields: dict[str, str]) -> None:
        """An operation that needs no image; its options stand in the address."""
        query = {key: values[0] for key, values in parse_qs(urlsplit(self.path).query).items()}
        context = self.server.contexts[query.pop("model", next(iter(self.server.contexts)))]
        operation = OPERATIONS[name]
        try:
            with self.server.lock:
                result = operation.run(context, None, operation.read_query({**query, **fields}))
        except UserError as error:
            self.send_json({"error": str(error), "code": 422}, 422)
            return
        if isinstance(result, File):
            self.send(result.content, result.media_type)
        else:
            self.send_json(result)

    def do_POST(self) -> None:
        parts = urlsplit(self.path)
        name = parts.path.removeprefix("/v1/")
        self.server.requests.append(f"POST {parts.path}")
        chosen = parse_qs(parts.query).get("model", list(self.server.models))[0]
        body = self.rfile.read(int(self.headers["Content-Length"]))
        head = f"Content-Type: {self.headers['Content-Type']}\r\n\r\n".encode()
        fields: dict[Any, Any] = {
            part.get_param("name", header="content-disposition"): part.get_payload(decode=True)
            for part in BytesParser(policy=HTTP).parsebytes(head + body).iter_parts()
        }
        try:
            with self.server.lock:
                result = answer(
                    self.server.contexts[chosen],
                    name,
                    fields["images"],
                    json.loads(fields.get("options", b"{}")),
                )
        except UserError as error:
            self.send_json({"error": str(error), "code": 422}, 422)
            return
        if isinstance(result, Packed):
            self.send(result.to_bytes(), "application/octet-stream")
        else:
            self.send_json(result)

    def send_json(self, value: Any, status: int = 200) -> None:
        self.send(json.dumps(value).encode(), "application/json", status)

    def send(self, content: bytes, media: str, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Type", media)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Content-Security-Policy", POLICY)
        self.end_headers()
        self.wfile.write(content)


def find_read(path: str) -> tuple[str, dict[str, str]] | None:
    """The operation without an image that an address names, and the options within the address.

    >>> find_read("/v1/data/3/image")
    ('data_image', {'id': '3'})
    """
    for operation in OPERATIONS.values():
        pattern = re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", f"/v1/{operation.path}")
        found = None if operation.needs_image else re.fullmatch(pattern, path)
        if found:
            return operation.name, found.groupdict()
    return None


def answer(context: Context, name: str, content: bytes, options: dict[str, Any]) -> Any:
    """What an operation returns for an encoded image."""
    operation = OPERATIONS[name]
    try:
        image = Image.open(BytesIO(content))
        image.load()
    except OSError:
        raise UserError("the file must be an image, got something else") from None
    result = operation.run(context, image, operation.read_options(options))
    if name == "explain" and isinstance(result, dict) and "explanations" not in result:
        return {"explanations": [result]}
    return result


def facts(name: str, model: Model) -> dict[str, Any]:
    """A model's record in the list of models."""
    labels = model.passport.labels
    return {
        "name": name,
        "family": model.passport.family,
        "image_size": list(model.passport.preprocessing.size),
        "channels": len(model.passport.preprocessing.mean),
        "parameters": sum(weights.numel() for weights in model.parameters()),
        "engine": "eager",
        "classes": model.config.num_classes,
        "labels": None if labels is None else list(labels),
        "multi_label": model.passport.multi_label,
        "can_inspect": name != "exported",
    }


@contextmanager
def serve_window(
    models: Mapping[str, Model], samples: Images, data: str | Path | None = None
) -> Iterator[WindowServer]:
    """The server, running in a thread until the block ends."""
    server = WindowServer(models, samples, data)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
