"""The Open Inference Protocol, checked with the client of Triton."""

import json
import struct
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest
import torch
from PIL import Image

import vitrail
from tests.serving.running import Running, png
from vitrail.models.model import Model

triton = pytest.importorskip("tritonclient.http", reason="needs tritonclient[http]")


@pytest.fixture(scope="module")
def model(checkpoints: Path) -> Model:
    return vitrail.load(checkpoints / "pets").eval()


@pytest.fixture(scope="module")
def images(model: Model) -> np.ndarray:
    opened = [Image.open(BytesIO(png(seed))) for seed in range(3)]
    return np.asarray(model.preprocess(opened).numpy())


@pytest.fixture
def client(service: Running) -> Iterator[Any]:
    found = triton.InferenceServerClient(urlsplit(service.address).netloc)
    yield found
    found.close()


def test_health_and_metadata(client: Any) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("pets")
    assert client.is_model_ready("pets", "1")
    assert not client.is_model_ready("dogs")
    assert client.get_server_metadata()["extensions"] == ["binary_tensor_data"]
    found = client.get_model_metadata("pets")
    assert found["inputs"] == [{"name": "images", "datatype": "FP32", "shape": [-1, 3, 32, 32]}]
    assert [one["shape"] for one in found["outputs"]] == [[-1, 3], [-1, 192]]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("sent_binary", [True, False])
@pytest.mark.parametrize("returned_binary", [True, False])
def test_tensors_both_ways(
    client: Any, model: Model, images: np.ndarray, sent_binary: bool, returned_binary: bool
) -> None:
    tensor = triton.InferInput("images", list(images.shape), "FP32")
    tensor.set_data_from_numpy(images, binary_data=sent_binary)
    outputs = [
        triton.InferRequestedOutput(name, binary_data=returned_binary)
        for name in ("logits", "pooled")
    ]
    found = client.infer("pets", [tensor], outputs=outputs, request_id="7")
    with torch.inference_mode():
        batch = torch.from_numpy(images)
        np.testing.assert_allclose(found.as_numpy("logits"), model(batch), atol=1e-5)
        np.testing.assert_allclose(found.as_numpy("pooled"), model.features(batch), atol=1e-5)
    assert found.get_response()["id"] == "7"
    assert found.get_response()["model_name"] == "pets"


def test_encoded_images_are_an_input_too(client: Any, model: Model, images: np.ndarray) -> None:
    files = np.array([png(seed) for seed in range(3)], dtype=np.object_)
    tensor = triton.InferInput("encoded_images", [3], "BYTES")
    tensor.set_data_from_numpy(files, binary_data=True)
    found = client.infer("pets", [tensor]).as_numpy("logits")
    with torch.inference_mode():
        np.testing.assert_allclose(found, model(torch.from_numpy(images)), atol=1e-5)


def test_the_client_reads_our_errors(client: Any) -> None:
    tensor = triton.InferInput("images", [1, 3, 8, 8], "FP32")
    tensor.set_data_from_numpy(np.zeros((1, 3, 8, 8), np.float32))
    error = pytest.importorskip("tritonclient.utils").InferenceServerException
    with pytest.raises(error, match=r"\[N, 3, 32, 32\]"):
        client.infer("pets", [tensor])
    with pytest.raises(error, match="is not served"):
        client.infer("dogs", [tensor])


ROW = 3 * 32 * 32
GOOD = {"name": "images", "datatype": "FP32", "shape": [1, 3, 32, 32], "data": [0.5] * ROW}


def test_an_answer_without_wishes_is_the_first_output_in_json(service: Running) -> None:
    found = service.post_json("/v2/models/pets/infer", {"inputs": [GOOD]}).json()
    assert [one["name"] for one in found["outputs"]] == ["logits"]
    assert len(found["outputs"][0]["data"]) == 3


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"datatype": "FP16"}, "must be FP32"),
        ({"shape": [0, 3, 32, 32]}, "at least 1"),
        ({"shape": [1, 3, 32, True]}, "at least 1"),
        ({"shape": "x"}, "at least 1"),
        ({"name": "pixels"}, "images or encoded_images"),
        ({"data": [0.5]}, f"{ROW} numbers"),
        ({"data": "x"}, "list of"),
        ({"data": None}, "list of"),
        ({"data": ["1"] * ROW}, "list of numbers"),
        ({"data": [True] * ROW}, "list of numbers"),
        ({"data": [[1], [2, 3]]}, "list of numbers"),
        ({"data": [1e300] * ROW}, "finite"),
        ({"parameters": {"binary_data_size": 10}}, "binary_data_size"),
        ({"name": "encoded_images", "datatype": "BYTES", "shape": [1]}, "binary data"),
    ],
)
def test_a_tensor_that_does_not_fit_is_refused(
    service: Running, changes: dict[str, Any], words: str
) -> None:
    reply = service.post_json("/v2/models/pets/infer", {"inputs": [{**GOOD, **changes}]})
    assert reply.status == 400
    assert words in reply.json()["error"]


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"inputs": []},
        {"inputs": [GOOD, GOOD]},
        {"inputs": [1]},
        {"inputs": [GOOD], "id": 3},
        {"inputs": [GOOD], "outputs": [{"name": "scores"}]},
        {"inputs": [GOOD], "outputs": [{"name": "logits"}, {"name": "logits"}]},
        {"inputs": [GOOD], "outputs": [{"name": "logits", "parameters": {"classification": 3}}]},
        {"inputs": [GOOD], "outputs": [{"name": "logits", "parameters": {"binary_data": 3}}]},
        {"inputs": [GOOD], "outputs": {}, "parameters": {"binary_data_output": "yes"}},
    ],
)
def test_a_request_that_does_not_fit_is_refused(service: Running, values: dict[str, Any]) -> None:
    reply = service.post_json("/v2/models/pets/infer", values)
    assert reply.status == 400
    assert reply.json()["error"]


@pytest.mark.parametrize("length", ["-1", "x", "99999999", "10", "9" * 5000])
def test_a_wrong_length_of_the_header_is_refused(service: Running, length: str) -> None:
    body = json.dumps({"inputs": [GOOD]}).encode()
    headers = {"inference-header-content-length": length}
    assert service.ask("POST", "/v2/models/pets/infer", body, headers).status == 400


def test_elements_that_lie_about_their_length_are_refused(service: Running) -> None:
    for data in (b"\xff", struct.pack("<I", 2**31), struct.pack("<I", 1) + b"a"):
        tensor = {
            "name": "encoded_images", "datatype": "BYTES", "shape": [2],
            "parameters": {"binary_data_size": len(data)},
        }  # fmt: skip
        body = json.dumps({"inputs": [tensor]}).encode()
        headers = {"inference-header-content-length": str(len(body))}
        assert service.ask("POST", "/v2/models/pets/infer", body + data, headers).status == 400


def test_a_compressed_body_is_refused(service: Running) -> None:
    headers = {"content-encoding": "gzip"}
    assert service.ask("POST", "/v2/models/pets/infer", b"x", headers).status == 415
    assert service.get("/v2/models/pets/versions/2").status == 404
