"""The client: what it sends, what it makes of responses, and how it behaves when they are bad."""

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from email import message_from_bytes
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import vitrail
from tests.inference.photos import small_model, write_photos
from tests.inference.scripted_service import Answer, Asked, json_answer, scripted
from vitrail import Client, UserError
from vitrail.inference.service_http import ServiceError, parse_address
from vitrail.inference.tensors_v2 import HEADER_LENGTH, decode_response, encode_request

PREDICTED = {"label": "cat", "score": 0.75, "top": [{"label": "cat", "score": 0.75}]}


def form_of(asked: Asked) -> tuple[list[bytes], dict[str, Any]]:
    """Images and options of a multipart request, parsed by the standard library."""
    head = f"Content-Type: {asked.headers['content-type']}\r\n\r\n".encode()
    parts = message_from_bytes(head + asked.body).get_payload()
    named: list[tuple[str, bytes]] = [
        (str(part.get_param("name", header="content-disposition")), part.get_payload(decode=True))  # type: ignore[union-attr, misc]
        for part in parts
    ]
    options = [json.loads(data) for name, data in named if name == "options"]
    return [data for name, data in named if name == "images"], options[0] if options else {}


def predict_each(asked: Asked) -> Answer:
    """A prediction for each image: its label is the length of the image's bytes."""
    images, _ = form_of(asked)
    return json_answer({"predictions": [{**PREDICTED, "label": str(len(one))} for one in images]})


@pytest.mark.parametrize(
    ("text", "url", "model"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000", None),
        ("http://127.0.0.1:8000/", "http://127.0.0.1:8000", None),
        ("https://gpu.example/vision/v1/models/pets", "https://gpu.example/vision", "pets"),
        ("http://h:1/v2/models/a%20b", "http://h:1", "a b"),
        ("http://[::1]:8000#pets", "http://[::1]:8000", "pets"),
    ],
)
def test_an_address_names_a_service_and_maybe_a_model(
    text: str, url: str, model: str | None
) -> None:
    found = parse_address(text)
    assert (found.url, found.model) == (url, model)
    assert parse_address(str(found)) == found


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("ftp://host", "addressed as http://HOST:PORT"),
        ("http://", "addressed as http://HOST:PORT"),
        ("http://host:99999", "no address of a service"),
        ("http://me:secret@host", "no password"),
        ("http://host/models/a#b", "names two models"),
    ],
)
def test_what_is_no_address_of_a_service_is_refused(text: str, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence) as error:
        Client(text)
    assert "secret" not in str(error.value)


def test_predict_sends_files_as_they_are_and_keeps_their_order(tmp_path: Path) -> None:
    names = write_photos(tmp_path, 40)
    with scripted(predict_each) as (url, asked), Client(f"{url}/models/pets") as client:
        found = client.predict(names, top=3)
    assert [one.name for one in found] == names
    assert [one.label for one in found] == [str(Path(name).stat().st_size) for name in names]
    assert {one.path for one in asked} == {"/v1/predict?model=pets"}
    sent = [form_of(one) for one in asked]
    assert all(options == {"top": 3} for _, options in sent)
    assert sorted(image for images, _ in sent for image in images) == sorted(
        Path(name).read_bytes() for name in names
    )


def test_one_image_is_one_record_and_pixels_arrive_unchanged() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    grey = np.arange(12, dtype=np.uint8).reshape(3, 4)
    with scripted(predict_each) as (url, asked), Client(url) as client:
        assert client.predict(Image.fromarray(pixels)).score == 0.75
        assert client.predict([pixels, grey])[1].name == "image 1"
    first, second = ([np.asarray(open_png(one)) for one in form_of(a)[0]] for a in asked)
    assert np.array_equal(first[0], pixels)
    assert np.array_equal(second[0], pixels)
    assert np.array_equal(second[1], grey)


def open_png(data: bytes) -> Image.Image:
    from io import BytesIO

    return Image.open(BytesIO(data))


def test_an_image_that_cannot_be_read_has_its_problem_and_no_other(tmp_path: Path) -> None:
    [name] = write_photos(tmp_path, 1)
    missing = str(tmp_path / "none.jpg")

    def refuse_second(asked: Asked) -> Answer:
        images, _ = form_of(asked)
        rows = [PREDICTED, {"error": "is no image"}, PREDICTED]
        return json_answer({"predictions": rows[: len(images)]})

    with scripted(refuse_second) as (url, asked), Client(url) as client:
        found = client.predict([name, missing, b"no picture", name])
        assert [one.problem for one in found] == [None, "no such file", "is no image", None]
        assert len(form_of(asked[0])[0]) == 3
        with pytest.raises(UserError, match=re.escape(f"{missing}: no such file")):
            client.predict(missing)


def test_connections_are_kept_and_a_closed_one_is_replaced() -> None:
    def closing_third(asked: Asked) -> Answer:
        answer = predict_each(asked)
        answer.close = len(asked_all) == 3
        return answer

    with scripted(closing_third) as (url, asked_all), Client(url) as client:
        for _ in range(5):
            assert client.predict(b"12345").label == "5"
            time.sleep(0.02)  # the server closes after its response
    assert len(asked_all) == 5
    assert len({one.connection for one in asked_all}) == 2


def test_threads_share_a_client() -> None:
    with scripted(predict_each) as (url, _), Client(url) as client, ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda n: client.predict(b"x" * n).label, range(1, 65)))
    assert found == [str(n) for n in range(1, 65)]


@pytest.mark.parametrize("status", [429, 503])
def test_a_full_service_is_asked_again_when_it_says(status: int) -> None:
    def busy_twice(asked: Asked) -> Answer:
        if len(asked_all) <= 2:
            full = {"error": "the queue is full", "code": status}
            return json_answer(full, status, Retry_After="0.2")
        return predict_each(asked)

    with scripted(busy_twice) as (url, asked_all), Client(url, timeout=10) as client:
        start = time.monotonic()
        assert client.predict(b"123").label == "3"
    assert len(asked_all) == 3
    assert 0.4 <= time.monotonic() - start < 5


def test_retries_end_before_the_deadline_and_the_reason_is_the_service_s() -> None:
    def full(asked: Asked) -> Answer:
        return json_answer({"error": "the queue is full", "code": 429}, 429, Retry_After="30")

    with scripted(full) as (url, asked), Client(url, timeout=1) as client:
        start = time.monotonic()
        with pytest.raises(UserError, match=r"the queue is full .*try again later") as error:
            client.predict(b"123")
        assert time.monotonic() - start < 0.5, "30 seconds are more than the deadline"
        assert isinstance(error.value, ServiceError)
        assert error.value.status == 429
        with pytest.raises(UserError, match="queue is full"):
            Client(url, retry=False).predict(b"123")
    assert len(asked) == 2


def test_a_service_that_does_not_respond_is_given_up_in_time() -> None:
    def slow(asked: Asked) -> Answer:
        return Answer(delay=1.0)

    with scripted(slow) as (url, _), Client(url, timeout=0.2) as client:
        start = time.monotonic()
        with pytest.raises(UserError, match=r"no response within 0\.2 s"):
            client.models()
        assert time.monotonic() - start < 0.9
    with pytest.raises(UserError, match="no service responds there"):
        client.models()
    assert not client.health().live


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (Answer(b"<html>"), "is it a Vitrail service"),
        (Answer(b"[" * 100_000), "is it a Vitrail service"),
        (json_answer({"predictions": []}), "must respond with 1 predictions, got 0"),
        (json_answer({"predictions": [{"score": 1}]}), "must predict a label, a score and top"),
        (json_answer({"error": "unknown model x", "code": 404}, 404), "unknown model x"),
        (json_answer({"error": "no key", "code": 401}, 401), "no key: give its key as api_key"),
        (Answer(b"oops", 500), "the service failed"),
    ],
)
def test_a_bad_response_is_one_sentence(answer: Answer, sentence: str) -> None:
    with (
        scripted(lambda asked: answer) as (url, _),
        Client(url, timeout=1) as client,
        pytest.raises(UserError, match=sentence) as error,
    ):
        client.predict(b"123")
    assert "\n" not in str(error.value)


def test_an_image_that_is_too_large_for_the_service_does_not_take_others_along() -> None:
    def limited(asked: Asked) -> Answer:
        if len(asked.body) > 2000:
            return json_answer({"error": "the body is too large", "code": 413}, 413)
        return predict_each(asked)

    with scripted(limited) as (url, _), Client(url) as client:
        found = client.predict([b"a" * 10, b"b" * 5000, b"c" * 20])
    assert [one.label for one in found] == ["10", None, "20"]
    assert found[1].problem is not None
    assert "the body is too large" in found[1].problem


def test_the_key_goes_along_and_never_into_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITRAIL_API_KEY", "from-environment")
    with scripted(predict_each) as (url, asked):
        Client(url).predict(b"1")
        Client(url, api_key="given").predict(b"1")
    assert [one.headers["authorization"] for one in asked] == [
        "Bearer from-environment",
        "Bearer given",
    ]
    with pytest.raises(UserError) as error:
        Client(url, api_key="line\r\nbreak: secret")
    assert "secret" not in str(error.value)


def test_embed_explain_search_and_models_are_typed_records() -> None:
    row = {"name": "pets", "family": "vit", "image_size": [32, 32], "channels": 3, "classes": 2,
           "labels": ["a", "b"], "state": "ready", "added_later": 1}  # fmt: skip
    target = {"index": 1, "label": "b", "score": 0.5}
    explained = {"method": "rollout", "target": target, "grid": [1, 2], "map": [[0.25, 1]]}
    answers = {
        "/v1/embed": {"vectors": [[1, 2.5]]},
        "/v1/explain": {"explanations": [{**explained, "reason": "auto"}]},
        "/v1/search": {"matches": [[{"name": "x.png", "score": 0.5}]]},
        "/v1/models": {"models": [row]},
    }
    with scripted(lambda asked: json_answer(answers[asked.path])) as (url, asked):
        client = Client(url)
        vector = client.embed(b"1").values
        why = client.explain(b"1", method="rollout", target="b", head=2)
        near = client.search(b"1", k=1)
        [model] = client.models()
    assert vector is not None
    assert vector.tolist() == [1, 2.5]
    assert why.target is not None
    assert why.map is not None
    assert (why.method, why.target.label, why.map.shape) == ("rollout", "b", (1, 2))
    assert near.matches[0].name == "x.png"
    assert (model.labels, model.image_size) == (("a", "b"), (32, 32))
    assert form_of(asked[1])[1] == {"method": "rollout", "target": "b", "head": 2}


def test_tensors_go_and_come_as_bytes() -> None:
    def double(asked: Asked) -> Answer:
        length = int(asked.headers[HEADER_LENGTH.lower()])
        head = json.loads(asked.body[:length])
        assert [one["name"] for one in head["outputs"]] == ["logits"]
        tensor = np.frombuffer(asked.body[length:], "<f4").reshape(head["inputs"][0]["shape"])
        body, size = encode_request("logits", tensor * 2, [])
        text = json.dumps({"outputs": json.loads(body[:size])["inputs"]}).encode()
        return Answer(text + body[size:], headers={HEADER_LENGTH: str(len(text))})

    images = np.random.default_rng(0).random((2, 3, 4, 5), dtype=np.float32)
    with scripted(double) as (url, asked), Client(f"{url}#pets") as client:
        found = client.infer(images)["logits"]
        with pytest.raises(UserError, match="not a response of the protocol v2"):
            decode_response(b"{}", None, where=url)
    assert np.array_equal(found, images * 2)
    assert asked[0].path == "/v2/models/pets/infer"


def test_the_client_needs_no_torch(tmp_path: Path) -> None:
    [name] = write_photos(tmp_path, 1)
    command = "import sys; from vitrail.cli.app import main; code = main(sys.argv[1:]); "
    command += "assert 'torch' not in sys.modules; raise SystemExit(code)"
    with scripted(predict_each) as (url, _):
        done = subprocess.run(
            [sys.executable, "-c", command, "predict", url, name, "--json"],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["label"] == str(Path(name).stat().st_size)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("option", "fix"),
    [
        ("--device=cuda", "serve the model with it"),
        ("--precision=int8", "leave it out"),
        ("--fast", "leave it out"),
        ("--mean=0.5", "leave it out"),
    ],
)
def test_what_a_service_has_decided_cannot_be_changed(
    option: str, fix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from vitrail.cli.app import main

    [name] = write_photos(tmp_path, 1)
    assert main(["predict", "http://127.0.0.1:9", name, option]) == 2
    assert fix in capsys.readouterr().err


@pytest.mark.parametrize(
    "mistake",
    [
        lambda client: client.predict(np.zeros(5, np.uint8)),
        lambda client: client.infer("x"),
        lambda client: client.explain(b"x", foo=object()),
        lambda client: type(client)(5),
        lambda client: type(client)("http://127.0.0.1:9", api_key=5),
    ],
)
def test_a_mistake_of_the_caller_is_one_sentence(mistake: Callable[[Any], object]) -> None:
    with scripted(predict_each) as (url, _), Client(url) as client, pytest.raises(UserError) as bad:
        mistake(client)
    assert "\n" not in str(bad.value)


def test_a_model_that_is_being_loaded_is_waited_for() -> None:
    row = {"name": "pets", "state": "loading"}
    known = {"family": "vit", "image_size": [32, 32], "channels": 3, "classes": 2}
    passport = asdict(small_model().passport)
    asked = []

    def answer(request: Asked) -> Answer:
        asked.append(request)
        if request.path == "/v1/models":
            return json_answer({"models": [row]})
        loaded = len(asked) > 3
        return json_answer({**row, **known, "passport": passport} if loaded else row)

    with scripted(answer) as (url, _):
        assert Client(url).models()[0].state == "loading"
        with pytest.raises(UserError, match="being loaded"):
            Client(f"{url}#pets", retry=False).model()
        served, _ = Client(f"{url}#pets").model()
    assert served.classes == 2


SLOW_BENCH = pytest.param("bench", marks=pytest.mark.slow)  # it imports every engine


@pytest.mark.parametrize("verb", ["load", "export", "figures", "convert", SLOW_BENCH])
def test_what_needs_weights_refuses_an_address(verb: str, tmp_path: Path) -> None:
    address = "http://127.0.0.1:9"
    outs = {"export": "m.onnx", "convert": "converted"}
    more: list[Any] = [tmp_path / outs[verb]] if verb in outs else []
    with pytest.raises(UserError, match="give the checkpoint"):
        getattr(vitrail, verb)(address, *more, **({"engine": "eager"} if verb == "bench" else {}))
