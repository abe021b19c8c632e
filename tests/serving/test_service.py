"""The service answers as the library does: predictions, embeddings, models, the page."""

import base64
import json
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import vitrail
from tests.serving.running import BOUNDARY, Running, make_form, png

BROKEN = b"\x89PNG\r\n\x1a\n and no more"


def predicted(checkpoint: Path, images: list[bytes], top: int = 5) -> list[dict[str, Any]]:
    found = vitrail.predict(checkpoint, [Image.open(BytesIO(one)) for one in images], top=top)
    return [one.facts() for one in found]


def test_predictions_are_those_of_the_library(service: Running, checkpoints: Path) -> None:
    images = [png(seed) for seed in range(3)]
    found = service.form("/v1/predict", images).json()
    assert found["model"] == "pets"
    wanted = predicted(checkpoints / "pets", images)
    for one, expected in zip(found["predictions"], wanted, strict=True):
        assert one["label"] == expected["label"]
        assert [row["label"] for row in one["top"]] == [row["label"] for row in expected["top"]]
        scores = [row["score"] for row in one["top"]]
        assert scores == pytest.approx([row["score"] for row in expected["top"]], abs=1e-6)


def test_answers_are_in_order_with_problems_in_their_place(service: Running) -> None:
    found = service.form("/v1/predict", [png(1), BROKEN, b"", png(2)]).json()["predictions"]
    assert ["error" in one for one in found] == [False, True, True, False]
    assert found[2]["error"] == "the file is empty"


def test_json_takes_base64_and_data_addresses(service: Running) -> None:
    text = base64.b64encode(png(1)).decode()
    images = [text, f"data:image/png;base64,{text}", "no base64!"]
    found = service.post_json("/v1/predict?model=many", {"images": images, "top": 2}).json()
    first, second, third = found["predictions"]
    assert first == second
    assert len(first["top"]) == 2
    assert first["top"][0]["label"].startswith("class ")
    assert "base64" in third["error"]


def test_one_image_may_be_the_body(service: Running) -> None:
    headers = {"content-type": "image/png"}
    found = service.ask("POST", "/v1/predict?top=1", png(1), headers).json()
    assert len(found["predictions"][0]["top"]) == 1


def test_options_of_the_address_count_for_forms_and_json_too(service: Running) -> None:
    image = base64.b64encode(png(1)).decode()
    form = service.form("/v1/predict?top=1", [png(1)])
    text = service.post_json("/v1/predict?top=1", {"images": [image]})
    both = service.post_json("/v1/predict?top=1", {"images": [image], "top": 2})
    assert [len(one.json()["predictions"][0]["top"]) for one in (form, text, both)] == [1, 1, 2]


def test_fields_of_a_form_are_options(service: Running) -> None:
    body = make_form([("images", png(1)), ("top", b"2")])
    headers = {"content-type": f"multipart/form-data; boundary={BOUNDARY}"}
    found = service.ask("POST", "/v1/predict", body, headers).json()
    assert len(found["predictions"][0]["top"]) == 2


def test_embeddings_are_what_the_head_reads(service: Running, checkpoints: Path) -> None:
    model = vitrail.load(checkpoints / "pets").eval()
    images = [png(seed) for seed in range(2)]
    expected = model.features(model.preprocess([Image.open(BytesIO(one)) for one in images]))
    found = service.form("/v1/embed", [*images, BROKEN]).json()["vectors"]
    np.testing.assert_allclose(found[:2], expected.detach().numpy(), atol=1e-5)
    assert "error" in found[2]


def test_models_say_what_they_are(service: Running) -> None:
    pets, many = service.get("/v1/models").json()["models"]
    assert (pets["name"], pets["state"], pets["family"]) == ("pets", "ready", "vit")
    assert pets["labels"] == ["cat", "dog", "고양이"]
    assert pets["image_size"] == [32, 32]
    assert pets["can_inspect"]
    assert (pets["engine"], pets["features"], pets["channels"]) == ("eager", 192, 3)
    assert (many["classes"], many["labels"]) == (200, None)


@pytest.mark.parametrize(
    ("path", "values", "status", "words"),
    [
        ("/v1/predict?model=dogs", {"images": []}, 404, "known are pets, many"),
        ("/v1/predict", {"images": []}, 422, "at least one image"),
        ("/v1/predict", {"images": "abc"}, 422, "list of texts"),
        ("/v1/predict", {"images": [], "tpo": 1}, 422, "did you mean top?"),
        ("/v1/predict", {"images": [], "top": 0}, 422, "top must be"),
        ("/v1/predict", {"images": [], "top": "many"}, 422, "top must"),
        ("/v1/predict", [1], 400, "JSON object"),
        ("/v1/predict", {"images": ["x"] * 65}, 413, "64 images"),
        ("/v1/embed", {"images": [], "top": 1}, 422, "top"),
        ("/v1/nothing", {}, 404, "nothing under this address"),
        ("/v1/predict/", {}, 404, "nothing under this address"),
        ("/v1/models", {}, 405, "takes GET, got POST"),
    ],
)
def test_a_mistake_is_one_sentence(
    service: Running, path: str, values: Any, status: int, words: str
) -> None:
    reply = service.post_json(path, values)
    assert reply.status == status
    assert reply.json()["code"] == status
    assert words in reply.json()["error"]


@pytest.mark.parametrize(
    ("headers", "body", "status"),
    [
        ({"content-type": "text/plain"}, b"x", 415),
        ({}, b"x", 415),
        ({"content-type": "application/json"}, b"{", 400),
        ({"content-type": "application/json"}, b'{"images": NaN}', 400),
        ({"content-type": "application/json"}, b"[" * 100_000, 400),
        ({"content-type": "multipart/form-data"}, b"x", 400),
        ({"content-type": "multipart/form-data; boundary=b"}, b"x", 400),
        ({"content-type": "multipart/form-data; boundary=b"}, b"--b\r\n\r\n", 400),
        ({"content-type": f"multipart/form-data; boundary={'b' * 300}"}, b"x", 400),
        ({"content-type": "application/json", "x-timeout": "soon"}, b"{}", 422),
        ({"content-type": "application/json", "content-encoding": "gzip"}, b"{}", 415),
    ],
)
def test_a_body_that_cannot_be_read_is_refused(
    service: Running, headers: dict[str, str], body: bytes, status: int
) -> None:
    reply = service.ask("POST", "/v1/predict", body, headers)
    assert (reply.status, reply.json()["code"]) == (status, status)


@pytest.mark.parametrize("seconds", ["1e-9", "1e-5"])
def test_an_image_that_comes_too_late_is_no_failure(service: Running, seconds: str) -> None:
    headers = {"content-type": "image/png", "x-timeout": seconds}
    reply = service.ask("POST", "/v1/predict", png(int(1e9 * float(seconds)) % 251), headers)
    if reply.status != 200:  # it was quick
        assert (reply.status, reply.json()["code"]) == (504, 504)
        assert "deadline" in reply.json()["error"]


def test_an_address_is_refused_unless_its_host_was_named(service: Running) -> None:
    values = {"images": ["http://127.0.0.1:1/cat.png", base64.b64encode(png(1)).decode()]}
    first, second = service.post_json("/v1/predict", values).json()["predictions"]
    assert "--allow-host" in first["error"]
    assert "label" in second


def test_the_page_is_served_with_its_headers(service: Running) -> None:
    reply = service.get("/")
    assert reply.status == 200
    assert reply.headers["content-type"].startswith("text/html")
    assert "default-src 'self'" in reply.headers["content-security-policy"]
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert "access-control-allow-origin" not in reply.headers
    again = service.ask("GET", "/", headers={"if-none-match": reply.headers["etag"]})
    assert (again.status, again.body) == (304, b"")


@pytest.mark.parametrize(
    ("path", "media"),
    [
        ("/static/style.css", "text/css"),
        ("/app/main.js", "text/javascript"),
        ("/static/strings/frame.json", "application/json"),
    ],
)
def test_files_of_the_page_have_their_type(service: Running, path: str, media: str) -> None:
    reply = service.get(path)
    assert reply.status == 200
    assert reply.headers["content-type"].startswith(media)


@pytest.mark.parametrize(
    "path",
    [
        "/nothing",
        "/static/../__init__.py",
        "/static/%2e%2e/__init__.py",
        "/..%2f..%2fsettings.py",
        "/static//etc/passwd",
        "/app",
        "/app/",
        "/static/app/main.js/x",
        "/%00",
    ],
)
def test_no_other_file_is_served(service: Running, path: str) -> None:
    reply = service.get(path)
    assert reply.status == 404
    assert reply.json()["error"].startswith("there is nothing under this address")


def test_health_and_metrics(service: Running) -> None:
    assert service.get("/healthz").json() == {"state": "ready"}
    service.form("/v1/predict", [png(1)])
    text = service.get("/metrics").body.decode()
    assert 'vitrail_requests_total{route="/v1/predict",status="200"}' in text
    assert 'vitrail_workers{model="pets"} 1.0' in text


def test_openapi_describes_every_route_with_an_example(service: Running) -> None:
    found = json.loads(service.get("/openapi.json").body)
    paths = found["paths"]
    assert {"/v1/predict", "/v1/embed", "/v1/explain", "/v1/search", "/v1/inspect"} <= set(paths)
    assert {"/v2/models/{name}/infer", "/v1/models/{name}", "/metrics"} <= set(paths)
    predict = paths["/v1/predict"]["post"]
    assert "multipart/form-data" in predict["requestBody"]["content"]
    assert predict["responses"]["200"]["content"]["application/json"]["example"]["predictions"]
    assert {"413", "422", "429", "503", "504"} <= set(predict["responses"])
    assert all(one["summary"] for path in paths.values() for one in path.values())
