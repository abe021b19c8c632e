"""Every family exported to ONNX with a dynamic batch, and the file run by ONNX Runtime."""

from pathlib import Path

import onnxruntime  # type: ignore[import-untyped]  # ships no types
import pytest
import torch

from tests.models.kinds import KINDS
from tests.models.test_coatnet import KINDS_COATNET
from tests.models.test_swin import KINDS_SWIN
from tests.parity.test_every_family import CONFIGS
from vitrail.models.catalogue import build, change
from vitrail.models.config import Config

# tracing takes seconds for each block
SHALLOW: dict[str, Config] = {
    "vit": change(CONFIGS["vit"], {"depth": 1}),
    "beit": change(CONFIGS["beit"], {"depth": 1}),
    "swin": change(CONFIGS["swin"], {"depths": (2,), "heads": (2,)}),
    "swinv2": change(CONFIGS["swinv2"], {"depths": (1,), "heads": (2,)}),
    "mobilevit": change(CONFIGS["mobilevit"], {"depths": (1, 1, 1)}),
    "mobilevitv2": change(CONFIGS["mobilevitv2"], {"depths": (1, 1, 1)}),
    "coatnet": change(CONFIGS["coatnet"], {"kinds": "CT", "dims": (16, 32), "depths": (1, 1)}),
}
AWKWARD: dict[str, Config] = {
    **CONFIGS,
    "beit, shared": change(CONFIGS["beit"], {"relative_bias": "shared", "pool": "cls"}),
    **{f"vit: {kind}": KINDS[kind] for kind in ("relative positions", "registers", "hybrid")},
    **{f"swin: {kind}": KINDS_SWIN[kind] for kind in KINDS_SWIN if "rolling" in kind},
    "coatnet: rw": KINDS_COATNET["rw, pooled by maxima"],
}
# torch's own, when it copies a graph
pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")


def check_export(config: Config, path: Path) -> None:
    torch.manual_seed(0)
    model = build(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # a fresh head says nothing
            parameter.add_(0.05 * torch.randn_like(parameter))
    images = torch.randn(3, config.channels, *config.image_size)
    batch = torch.export.Dim("batch", min=1, max=64)
    program = torch.onnx.export(
        model, (images[:2],), dynamic_shapes=({0: batch},), dynamo=True, verbose=False
    )
    assert program is not None
    program.save(path)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (given,) = session.get_inputs()
    for count in (1, 3):
        with torch.no_grad():
            expected = model(images[:count])
        (found,) = session.run(None, {given.name: images[:count].numpy()})
        torch.testing.assert_close(torch.from_numpy(found), expected, rtol=1e-4, atol=1e-5)
        assert expected.std() > 0


# by default the one whose attention has a bias in windows
@pytest.mark.parametrize(
    "family",
    [
        family if family == "swinv2" else pytest.param(family, marks=pytest.mark.slow)
        for family in SHALLOW
    ],
)
def test_every_family_runs_in_onnx_runtime(family: str, tmp_path: Path) -> None:
    check_export(SHALLOW[family], tmp_path / "model.onnx")


def test_there_is_one_of_every_family() -> None:
    assert SHALLOW.keys() == CONFIGS.keys()


@pytest.mark.slow
@pytest.mark.parametrize("kind", AWKWARD)
def test_deeper_and_awkward_models_run_in_onnx_runtime(kind: str, tmp_path: Path) -> None:
    check_export(AWKWARD[kind], tmp_path / "model.onnx")
