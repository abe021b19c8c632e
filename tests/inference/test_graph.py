"""Every family as a graph: traced once, run for any batch by ONNX Runtime, equal to the model."""

from collections.abc import Callable
from typing import Any, get_args

import numpy as np
import onnxruntime  # type: ignore[import-untyped]  # ships no types
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from tests.models.kinds import KINDS
from tests.models.test_coatnet import KINDS_COATNET
from tests.models.test_swin import KINDS_SWIN
from tests.parity.test_every_family import CNNS, CONFIGS, make, quickly
from vitrail import UserError, capture
from vitrail.inference.graph import GraphOutput, output_names, to_onnx, trace
from vitrail.models.catalogue import change
from vitrail.models.config import Config
from vitrail.models.model import Model

# tracing takes seconds for each block
SHALLOW: dict[str, Config] = {
    "vit": change(CONFIGS["vit"], {"depth": 1}),
    "beit": change(CONFIGS["beit"], {"depth": 1}),
    "swin": change(CONFIGS["swin"], {"depths": (2,), "heads": (2,)}),
    "swinv2": change(CONFIGS["swinv2"], {"depths": (1,), "heads": (2,)}),
    "mobilevit": change(CONFIGS["mobilevit"], {"depths": (1, 1, 1)}),
    "mobilevitv2": change(CONFIGS["mobilevitv2"], {"depths": (1, 1, 1)}),
    "coatnet": change(CONFIGS["coatnet"], {"kinds": "CT", "dims": (16, 32), "depths": (1, 1)}),
    "resnet": change(CONFIGS["resnet"], {"depths": (1, 1)}),
    "bit": change(CONFIGS["bit"], {"depths": (1, 1)}),
    "mobilenetv2": CONFIGS["mobilenetv2"],
}
AWKWARD: dict[str, Config] = {
    **CONFIGS,
    "beit, shared": change(CONFIGS["beit"], {"relative_bias": "shared", "pool": "cls"}),
    **{f"vit: {kind}": KINDS[kind] for kind in ("relative positions", "registers", "hybrid")},
    **{f"swin: {kind}": KINDS_SWIN[kind] for kind in KINDS_SWIN if "rolling" in kind},
    "coatnet: rw": KINDS_COATNET["rw, pooled by maxima"],
}


def run_onnx(proto: Any, images: Tensor) -> dict[str, NDArray[np.float32]]:
    session = onnxruntime.InferenceSession(
        proto.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    names = [one.name for one in session.get_outputs()]
    return dict(zip(names, session.run(None, {"images": images.numpy()}), strict=True))


def some_images(model: Model, count: int) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    size = model.config.channels, *model.config.image_size
    return torch.randn(count, *size, generator=generator)


def check_graph(model: Model, *, attention: bool) -> None:
    """The graph of any batch is equal to the model, and so are its attention weights."""
    proto = to_onnx(trace(model, attention=attention))
    assert not proto.graph.value_info
    for value in (*proto.graph.input, proto.graph.output[0]):
        assert value.type.tensor_type.shape.dim[0].dim_param == "batch"
    for count in (1, 3):
        images = some_images(model, count)
        with torch.no_grad():
            expected = {"logits": model(images)}
        if attention:
            with torch.no_grad(), capture(model) as maps:
                model(images)
            expected |= {name: one.weights for name, one in maps.items()}
        found = run_onnx(proto, images)
        assert found.keys() == expected.keys()
        for name, values in expected.items():
            torch.testing.assert_close(
                torch.from_numpy(found[name]), values, rtol=1e-4, atol=1e-5, msg=name
            )
        assert expected["logits"].std() > 0


# by default the one whose attention has a bias in windows
@quickly("swinv2")
def test_every_family_runs_in_onnx_runtime_with_its_attention(family: str) -> None:
    check_graph(make(family, configs=SHALLOW), attention=family not in CNNS)


def test_there_is_one_of_every_family() -> None:
    assert SHALLOW.keys() == CONFIGS.keys()


@pytest.mark.slow
@pytest.mark.parametrize("kind", AWKWARD)
def test_deeper_and_awkward_models_run_in_onnx_runtime(kind: str) -> None:
    check_graph(make(kind, configs=AWKWARD), attention=False)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("output", get_args(GraphOutput))
def test_each_output_is_that_of_the_model(output: GraphOutput) -> None:
    model = make("vit", configs=SHALLOW)
    images = some_images(model, 2)
    compute: dict[GraphOutput, Callable[[Tensor], Tensor]] = {
        "logits": model,
        "scores": lambda images: model(images).softmax(dim=1),
        "pooled": model.features,
        "tokens": model.encode,
    }
    program = trace(model, output=output, batch=2)
    assert output_names(program) == [output]
    found = program.module()(images)
    torch.testing.assert_close(found[output], compute[output](images))


def test_a_model_in_training_is_traced_in_evaluation_mode_and_trains_on() -> None:
    model = make("vit", configs=SHALLOW, dropout=0.5).train()
    images = some_images(model, 1)
    found = trace(model, batch=1).module()(images)["logits"]
    assert model.training
    torch.testing.assert_close(found, model.eval()(images))


def test_a_model_without_a_head_has_no_logits() -> None:
    with pytest.raises(UserError, match='use output="pooled"'):
        trace(make("vit", configs=SHALLOW).reset_head(0))


def test_a_size_that_cannot_be_dynamic_is_refused() -> None:
    for family in ("swinv2", "beit"):
        with pytest.raises(UserError, match="load the model with image_size"):
            trace(make(family, configs=SHALLOW), dynamic_size=True)
