"""`vitrail.Client`: a Vitrail service from Python, without torch. Images go as encoded bytes, as
they are in files, and the service decodes them; tensors go by the Open Inference Protocol v2."""

import json
import os
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar, overload

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitrail.core.errors import UserError
from vitrail.core.passport import Passport
from vitrail.core.ranges import check_count
from vitrail.core.records import validate
from vitrail.data.framing import to_array
from vitrail.data.images import BadImage, from_pillow
from vitrail.data.paths import is_one as is_one_path
from vitrail.data.paths import list_images
from vitrail.data.pixels import (
    ImageSource,
    Named,
    file_bytes,
    is_one_image,
    name_of,
    not_an_image,
)
from vitrail.data.threads import ahead
from vitrail.inference.prediction import Output, Prediction
from vitrail.inference.service_http import (
    KEY_VARIABLE,
    Deadline,
    Response,
    ServiceError,
    ServiceHttp,
    parse_address,
    path_of,
    refusal,
)
from vitrail.inference.service_records import (
    ExplainedImage,
    Health,
    SearchedImage,
    ServedModel,
    parse_json,
    record_of,
    rows_of,
    to_explained,
    to_prediction,
    to_searched,
    to_vector,
)
from vitrail.inference.tensors_v2 import BINARY, HEADER_LENGTH, decode_response, encode_request

TIMEOUT = 60.0  # seconds of one request, with retries
REQUESTS = 4  # at a time
BATCH = 16  # images of one request, and
BATCH_BYTES = 8 * 2**20  # bytes that it has at most, unless one image alone has more
TOO_LARGE = 413
LOADING_PAUSE = 0.2  # seconds between questions whether a model is loaded

T = TypeVar("T")
Images = ImageSource | Iterable[ImageSource]


class Client:
    """A service at an address, such as http://127.0.0.1:8000; …/models/NAME chooses one of its
    models. A request ends within `timeout` seconds; while the service is full (429, 503) it is
    repeated as often as that allows. Connections stay open, and threads may share a client. The
    key of a service that needs one is `api_key`, or in the environment VITRAIL_API_KEY.

    One image (a path, an address, bytes, a PIL image, a uint8 array) gives one record, and a
    `UserError` where it cannot be read; a directory, a pattern or an iterable gives a list in the
    same order, in which an image that cannot be read has its `problem`.

    >>> with vitrail.Client("http://127.0.0.1:8000") as client:  # doctest: +SKIP
    ...     client.predict("cat.jpg").label
    'cat'
    """

    def __init__(
        self, url: str, api_key: str | None = None, timeout: float = TIMEOUT, *, retry: bool = True
    ) -> None:
        self.address = parse_address(url)
        self.retry = retry
        key = api_key if api_key is not None else os.environ.get(KEY_VARIABLE)
        self._name = self.address.model  # found at the first request that needs it
        self._http = ServiceHttp(self.address, api_key=key or None, timeout=timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close idle connections; a later request opens new ones."""
        self._http.close()

    def __repr__(self) -> str:
        return f"Client({str(self.address)!r})"

    @overload
    def predict(self, images: Image.Image | bytes, *, top: int = 5) -> Prediction: ...
    @overload
    def predict(self, images: str | Path | NDArray[np.uint8], *, top: int = 5) -> Any: ...
    @overload
    def predict(self, images: Iterable[ImageSource], *, top: int = 5) -> list[Prediction]: ...
    def predict(self, images: Images, *, top: int = 5) -> Prediction | list[Prediction]:
        """The best `top` labels of images."""
        check_count("top", top, at_least=1)
        found = list(self.stream("predict", images, to_prediction, {"top": top}))
        return only(found) if is_one(images) else found

    @overload
    def embed(self, images: Image.Image | bytes) -> Output: ...
    @overload
    def embed(self, images: str | Path | NDArray[np.uint8]) -> Any: ...
    @overload
    def embed(self, images: Iterable[ImageSource]) -> list[Output]: ...
    def embed(self, images: Images) -> Output | list[Output]:
        """The features of images: `values` (D,) of each."""
        found = list(self.stream("embed", images, to_vector))
        return only(found) if is_one(images) else found

    @overload
    def explain(
        self,
        images: Image.Image | bytes,
        *,
        method: str = "auto",
        target: int | str | None = None,
        **options: Any,
    ) -> ExplainedImage: ...
    @overload
    def explain(
        self,
        images: str | Path | NDArray[np.uint8],
        *,
        method: str = "auto",
        target: int | str | None = None,
        **options: Any,
    ) -> Any: ...
    @overload
    def explain(
        self,
        images: Iterable[ImageSource],
        *,
        method: str = "auto",
        target: int | str | None = None,
        **options: Any,
    ) -> list[ExplainedImage]: ...
    def explain(
        self,
        images: Images,
        *,
        method: str = "auto",
        target: int | str | None = None,
        **options: Any,
    ) -> ExplainedImage | list[ExplainedImage]:
        """Which parts of images drive their predictions: a map of each, by one method; `options`
        are those of the service's /v1/explain."""
        wanted = {"method": method, "target": target, **options}
        found = list(self.stream("explain", images, to_explained, wanted, batch_size=1))
        return only(found) if is_one(images) else found

    @overload
    def search(self, images: Image.Image | bytes, *, k: int = 10) -> SearchedImage: ...
    @overload
    def search(self, images: str | Path | NDArray[np.uint8], *, k: int = 10) -> Any: ...
    @overload
    def search(self, images: Iterable[ImageSource], *, k: int = 10) -> list[SearchedImage]: ...
    def search(self, images: Images, *, k: int = 10) -> SearchedImage | list[SearchedImage]:
        """The `k` nearest images of the service's own data."""
        check_count("k", k, at_least=1)
        found = list(self.stream("search", images, to_searched, {"k": k}))
        return only(found) if is_one(images) else found

    def models(self) -> list[ServedModel]:
        """The models of the service."""
        rows = rows_of(self._get("/v1/models").body, "models", None, self.address.url)
        return [record_of(ServedModel, row, self.address.url) for row in rows]

    def model(self) -> tuple[ServedModel, Passport]:
        """The model that this client asks, and its passport."""
        name = self._model_name()
        where = f"{self.address.url}/v1/models/{name}"
        row = self._loaded(name, where)
        if not isinstance(row.get("passport"), Mapping):
            raise UserError(f"{where}: must respond with the model's passport: update the service")
        passport = validate(Passport, row["passport"], where=f"{where}: passport")
        return record_of(ServedModel, row, where), passport

    def infer(
        self, images: NDArray[np.float32], *, outputs: Sequence[str] = ("logits",)
    ) -> dict[str, NDArray[np.generic]]:
        """Outputs for preprocessed images (B, C, H, W), as binary tensors of protocol v2: logits
        (B, K), pooled (B, D)."""
        name = self._model_name()
        body, length = encode_request("images", as_tensor(images), outputs)
        headers = {"Content-Type": BINARY, HEADER_LENGTH: str(length)}
        response = self._send("POST", path_of("v2", "models", name, "infer"), body, headers)
        stated = response.headers.get(HEADER_LENGTH.lower())
        known = int(stated) if stated is not None and stated.isdecimal() else None
        found = decode_response(response.body, known, where=self.address.url)
        if missing := [one for one in outputs if one not in found]:
            raise UserError(f"{self.address}: must respond with the output {missing[0]}")
        return found

    def health(self) -> Health:
        """Whether the service lives, and whether it is ready; it is live if it responds at all."""
        try:
            live = self._http.request("GET", "/v2/health/live", retry=False).status == 200
            ready = self._http.request("GET", "/v2/health/ready", retry=False).status == 200
        except ServiceError:
            return Health(live=False, ready=False)
        return Health(live=live, ready=ready)

    def stream(
        self,
        verb: str,
        images: Images,
        to_record: Callable[[str, Any, str], T],
        options: Mapping[str, Any] | None = None,
        *,
        batch_size: int = BATCH,
        requests: int = REQUESTS,
    ) -> Iterator[T]:
        """A record for each image, in order: a few images for each request, and a few requests at
        a time."""
        key, where = KEYS[verb], f"{self.address.url}/v1/{verb}"

        def compute(batch: list[Encoded]) -> list[T]:
            sent = [one.image for one in batch if isinstance(one.image, bytes)]
            rows = iter(self._post_images(verb, key, sent, options or {}))
            found = []
            for one in batch:
                unread = one.image if isinstance(one.image, BadImage) else None
                row = next(rows) if unread is None else {"error": unread.reason}
                found.append(to_record(one.name, row, where))
            return found

        every = batches(iter_encoded(images), batch_size)
        for part in ahead(compute, every, threads=requests, lead=1):
            yield from part

    def _post_images(
        self, verb: str, key: str, images: Sequence[bytes], options: Mapping[str, Any]
    ) -> list[Any]:
        if not images:
            return []
        body, kind = encode_form(images, options)
        query = "" if self.address.model is None else "?model=" + path_of(self.address.model)[1:]
        try:
            response = self._send("POST", f"/v1/{verb}{query}", body, {"Content-Type": kind})
        except ServiceError as error:
            if error.status != TOO_LARGE:
                raise
            if len(images) == 1:  # this image alone is refused, the others are not
                return [{"error": str(error)}]
            parts = (self._post_images(verb, key, [one], options) for one in images)
            return [row for part in parts for row in part]
        return rows_of(response.body, key, len(images), self.address.url)

    def _model_name(self) -> str:
        if self._name is None:
            models = self.models()
            if not models:
                raise UserError(f"{self.address.url}: the service has no model")
            self._name = models[0].name
        return self._name

    def _loaded(self, name: str, where: str) -> dict[str, Any]:
        """What the service says of a model, once it is loaded."""
        deadline = Deadline(self._http.timeout)
        while True:
            row = parse_json(self._get(path_of("v1", "models", name)).body, where)
            if row.get("state") != "loading" or "passport" in row:
                return row
            if not self.retry or deadline.left < LOADING_PAUSE:
                raise ServiceError(f"{where}: the model is being loaded: try again later", 503)
            time.sleep(LOADING_PAUSE)

    def _get(self, path: str) -> Response:
        return self._send("GET", path)

    def _send(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Response:
        response = self._http.request(method, path, body, headers, retry=self.retry)
        if response.status != 200:
            raise refusal(self.address, response)
        return response


# the list that each verb responds with
KEYS = {
    "predict": "predictions",
    "embed": "vectors",
    "explain": "explanations",
    "search": "matches",
}


@dataclass(frozen=True)
class Encoded:
    """An image as bytes, or why it cannot be read, and its name."""

    name: str
    image: bytes | BadImage


def as_tensor(images: Any) -> NDArray[np.float32]:
    try:
        return np.asarray(images, np.float32)
    except (TypeError, ValueError):
        raise UserError(
            f"images must be preprocessed images (B, C, H, W) in float32, got {images!r:.60}"
        ) from None


def is_one(images: Images) -> bool:
    return is_one_path(str(images)) if isinstance(images, str | Path) else is_one_image(images)


def only(found: Sequence[T]) -> T:
    """The record of one image, whose problem is the caller's."""
    [record] = found
    if (problem := getattr(record, "problem", None)) is not None:
        raise UserError(f"{getattr(record, 'name', 'image')}: {problem}")
    return record


def iter_encoded(images: Images) -> Iterator[Encoded]:
    """Every image that is meant, as bytes in a format that a service reads."""
    listed: Any = [images] if is_one(images) or isinstance(images, str | Path) else images
    try:
        every = iter(listed)
    except TypeError:
        raise not_an_image(images) from None
    for number, image in enumerate(every):
        if isinstance(image, str | Path):
            path = str(image)
            for name in (path,) if is_one_path(path) else list_images([path]):
                yield encoded(name, name)
        else:
            name = image.name if isinstance(image, Named) else f"image {number}"
            yield encoded(name, image)


def encoded(name: str, image: Any) -> Encoded:
    try:
        return Encoded(name, image_bytes(image))
    except BadImage as problem:
        return Encoded(name, problem.with_traceback(None))


def image_bytes(image: ImageSource) -> bytes:
    """A file's own bytes; pixels in memory as PNG, which loses nothing."""
    held, name = image.image if isinstance(image, Named) else image, name_of(image)
    match held:
        case bytes():
            return held
        case str() | Path():
            return file_bytes(str(held))
        case Image.Image():
            pixels = from_pillow(held, name, channels=1 if held.mode in ("1", "L") else 3)
        case np.ndarray():
            if 0 in held.shape[:2]:
                raise BadImage(name, f"it has no pixels: its shape is {held.shape}")
            pixels = to_array(held, 1 if held.ndim == 2 or held.shape[-1] == 1 else 3)
        case _:
            raise not_an_image(held)
    file = BytesIO()
    grey = pixels.shape[2] == 1
    Image.fromarray(pixels[..., 0] if grey else pixels).save(file, "PNG", compress_level=1)
    return file.getvalue()


def batches(images: Iterable[Encoded], most: int) -> Iterator[list[Encoded]]:
    """A few images at a time: not too many, and not too many bytes."""
    batch, size = list[Encoded](), 0
    for one in images:
        length = len(one.image) if isinstance(one.image, bytes) else 0
        if batch and (len(batch) >= most or size + length > BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(one)
        size += length
    if batch:
        yield batch


def json_of(options: Mapping[str, Any]) -> str:
    try:
        return json.dumps(options)
    except (TypeError, ValueError) as error:
        raise UserError(f"options must be plain values, as JSON has: {error}") from None


def encode_form(images: Sequence[bytes], options: Mapping[str, Any]) -> tuple[bytes, str]:
    """A multipart form with images and options, and its content type (RFC 7578)."""
    boundary = secrets.token_hex(16)
    while any(boundary.encode() in one for one in images):
        boundary = secrets.token_hex(16)
    out = BytesIO()
    for number, image in enumerate(images):
        out.write(
            f'--{boundary}\r\nContent-Disposition: form-data; name="images"; '
            f'filename="{number}"\r\nContent-Type: application/octet-stream\r\n\r\n'.encode()
        )
        out.write(image)
        out.write(b"\r\n")
    if options:
        text = json_of(options)
        out.write(
            f'--{boundary}\r\nContent-Disposition: form-data; name="options"\r\n\r\n'
            f"{text}\r\n".encode()
        )
    out.write(f"--{boundary}--\r\n".encode())
    return out.getvalue(), f"multipart/form-data; boundary={boundary}"
