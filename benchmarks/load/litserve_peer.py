"""LitServe at the settings that it is given: with the decoding, preparation and engine of the
service, or (`--timm`) with what its users write: a timm model in eager PyTorch, Pillow, and timm's
own transform.

python -m benchmarks.load.litserve_peer --port 8001 --model DIR --engine eager --threads 1
    --workers 2 --batch-size 32 --wait-ms 5
python -m benchmarks.load.litserve_peer --port 8001 --timm vit_small_patch16_224 --classes 100 …
"""

import argparse
import base64
from io import BytesIO
from typing import Any

import litserve  # type: ignore[import-untyped]
import torch
from PIL import Image
from torch import Tensor

from vitrail.core.torchvision import mend_torchvision
from vitrail.serving.engine import BatchEngine, Item
from vitrail.serving.loading import load_model
from vitrail.serving.spec import WorkerSpec


class Classifier(litserve.LitAPI):  # type: ignore[misc]
    """One image in base64 to its five best classes, through the engine that the service has too."""

    def __init__(self, spec: WorkerSpec, *, batch_size: int, wait: float) -> None:
        super().__init__(max_batch_size=batch_size, batch_timeout=wait)
        self.options = spec

    def setup(self, device: str) -> None:
        torch.set_num_threads(self.options.threads)
        model = load_model(self.options)
        self.labels = model.passport.labels or [
            f"class {number}" for number in range(model.config.num_classes)
        ]
        self.engine = BatchEngine(model, self.options)

    def decode_request(self, request: dict[str, Any], **_: Any) -> bytes:
        return base64.b64decode(request["image"])

    def batch(self, inputs: list[bytes]) -> list[bytes]:
        return inputs

    def predict(self, x: list[bytes], **_: Any) -> list[Any]:
        return self.engine.run([Item("scores", False, one) for one in x])

    def unbatch(self, output: list[Any]) -> list[Any]:
        return output

    def encode_response(self, output: Any, **_: Any) -> dict[str, Any]:
        if isinstance(output, str):
            return {"error": output}
        indices, scores = output[:, :5].tolist()
        top = [
            {"label": self.labels[int(index)], "score": score}
            for index, score in zip(indices, scores, strict=True)
        ]
        return {**top[0], "top": top}


class TimmClassifier(litserve.LitAPI):  # type: ignore[misc]
    """One image in base64 to its five best classes, as the manuals of LitServe and timm have it."""

    def __init__(
        self, name: str, *, classes: int, threads: int, batch_size: int, wait: float
    ) -> None:
        super().__init__(max_batch_size=batch_size, batch_timeout=wait)
        self.name, self.classes, self.threads = name, classes, threads

    def setup(self, device: str) -> None:
        mend_torchvision()  # where it is a build for CUDA beside torch for CPUs, timm cannot
        import timm

        torch.set_num_threads(self.threads)
        self.model = timm.create_model(self.name, num_classes=self.classes).eval()
        how = timm.data.resolve_model_data_config(self.model)
        self.transform: Any = timm.data.create_transform(**how, is_training=False)

    def decode_request(self, request: dict[str, Any], **_: Any) -> Tensor:
        image = Image.open(BytesIO(base64.b64decode(request["image"]))).convert("RGB")
        found: Tensor = self.transform(image)
        return found

    def batch(self, inputs: list[Tensor]) -> Tensor:
        return torch.stack(inputs)

    @torch.inference_mode()
    def predict(self, x: Tensor, **_: Any) -> Tensor:
        found: Tensor = self.model(x).softmax(dim=-1)
        return found

    def unbatch(self, output: Tensor) -> list[Tensor]:
        return list(output)

    def encode_response(self, output: Tensor, **_: Any) -> dict[str, Any]:
        scores, indices = output.topk(5)
        top = [
            {"label": f"class {index}", "score": score}
            for index, score in zip(indices.tolist(), scores.tolist(), strict=True)
        ]
        return {**top[0], "top": top}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--model")
    parser.add_argument("--engine", default="eager")
    parser.add_argument("--timm")
    parser.add_argument("--classes", type=int, default=100)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--wait-ms", type=float, default=5.0)
    given = parser.parse_args()
    api = make_api(given)
    server = litserve.LitServer(
        api, accelerator="cpu", workers_per_device=given.workers, timeout=60, fast_queue=True
    )
    server.run(
        host="127.0.0.1",
        port=given.port,
        generate_client_file=False,
        log_level="warning",
        api_server_worker_type="process",
    )


def make_api(given: argparse.Namespace) -> litserve.LitAPI:
    wait = given.wait_ms / 1000
    if given.timm is not None:
        return TimmClassifier(
            given.timm,
            classes=given.classes,
            threads=given.threads,
            batch_size=given.batch_size,
            wait=wait,
        )
    spec = WorkerSpec(
        name="model",
        path=given.model,
        engine=given.engine,
        threads=given.threads,
        batch_size=given.batch_size,
        device="cpu",
    )
    return Classifier(spec, batch_size=given.batch_size, wait=wait)


if __name__ == "__main__":
    main()
