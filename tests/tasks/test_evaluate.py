"""`vitrail.evaluate` in Python: a record with plain attributes, and what it says about itself."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import vitrail
from vitrail.core.errors import UserError
from vitrail.core.outputs import Outputs
from vitrail.evaluation.calibration import Reliability, TemperatureScaling
from vitrail.models.model import Model
from vitrail.tasks.arguments import check_not_swapped
from vitrail.tasks.evaluate import output_notes


@pytest.fixture
def model() -> Model:
    torch.manual_seed(0)
    fields = {"dim": 16, "depth": 1, "heads": 2, "mlp_dim": 16, "image_size": 16, "patch_size": 8}
    made = vitrail.create("vit_ti_16", num_classes=10, channels=1, **fields)
    torch.nn.init.normal_(made.get_parameter("head.classes.weight"))
    return made.train()


def test_the_record_has_plain_attributes(model: Model, tmp_path: Path) -> None:
    found = vitrail.evaluate(model, "digits")
    assert model.training, "a model is given back as it was"
    assert found.images == found.outputs.images == 179
    assert found.accuracy == found.metrics["accuracy"]
    low, high = found.intervals["accuracy"]
    assert low <= found.metrics["accuracy"] <= high
    assert repr(found).startswith("Evaluation(ViT on digits, 179 images: accuracy 0.")
    found.save_html(tmp_path / "report.html")
    assert "<html" in (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "digits" in found._repr_html_()


def test_device_and_precision_leave_the_model_as_it_was(model: Model) -> None:
    wide = vitrail.evaluate(model, "digits", device="cpu", precision="float64")
    assert next(model.parameters()).dtype == torch.float32
    narrow = vitrail.evaluate(model, "digits")
    assert np.allclose(wide.outputs.logits, narrow.outputs.logits, atol=1e-4)
    with pytest.raises(UserError, match="device must be auto, cpu, cuda"):
        vitrail.evaluate(model, "digits", device="gpu")


def test_a_probe_shows_its_table(model: Model) -> None:
    found = vitrail.probe(model, "digits", method="knn", neighbours=[3], cache=None, device="cpu")
    assert repr(found).splitlines()[0] == "ProbeResult(ViT on digits, knn)"
    assert "95 % interval" in found.html()


def outputs_with(logits: list[list[float]]) -> Outputs:
    return Outputs(
        labels=("a", "b"),
        logits=np.array(logits, dtype=np.float32),
        targets=np.eye(2, dtype=np.float32)[[0] * len(logits)],
        indices=np.arange(len(logits)),
    )


def scaling(ece: float) -> TemperatureScaling:
    bins = Reliability(np.array([10]), np.array([0.5 + ece]), np.array([0.5]))
    return TemperatureScaling(
        temperature=2.5, fitted_on="val", at_limit=False, reliability=bins, nll=1, brier=1
    )


def test_notes_name_what_is_wrong_with_outputs() -> None:
    fine = outputs_with([[1, 0], [2, 0]])
    assert output_notes(fine, 0.1, None) == []
    assert output_notes(fine, 0.1, scaling(0.05)) == []
    [note] = output_notes(fine, 0.1, scaling(0.3))
    assert "worse on these images: the error 0.1000 becomes" in note
    [note] = output_notes(outputs_with([[1, 0], [float("nan"), 0]]), 0.1, None)
    assert note == "the output is NaN or infinite for 1 of 2 images: it counts as zeros"


def test_a_model_and_data_in_each_others_place(model: Model, tmp_path: Path) -> None:
    folder = vitrail.save(model, tmp_path / "model")
    (tmp_path / "photos").mkdir()
    for swapped in (("digits", folder), (tmp_path / "photos", folder), ("hf:a/b", "x.safetensors")):
        with pytest.raises(UserError, match="expected MODEL, then DATA"):
            check_not_swapped(*swapped)
    verbs: tuple[Any, ...] = (vitrail.evaluate, vitrail.probe, vitrail.figures)
    for verb in verbs:
        with pytest.raises(UserError, match="photos is data, not a model"):
            verb(tmp_path / "photos", model)
    for right in ((folder, "digits"), (model, "digits"), (folder, tmp_path / "arrays.npz")):
        check_not_swapped(*right)
