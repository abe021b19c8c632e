"""The page of figures: for every family each figure, or the sentence that says why not."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from PIL import Image
from tests.models.kinds import KINDS
from tests.pages.html import check_page
from tests.parity.test_every_family import CNNS, FAMILIES, make, picture
from torch import nn

from vitrail import UserError
from vitrail.core.passport import Preprocessing
from vitrail.explanation.activation_statistics import collect_statistics
from vitrail.explanation.drawing import in_rows, mosaic, with_holes
from vitrail.explanation.figures import NEEDS_IMAGES, draw_figures
from vitrail.explanation.weight_figures import denormalise
from vitrail.models.vit import ViT
from vitrail.pages.charts import chart_style, figure_svg
from vitrail.tasks.figures import Figures

EVERY = ["filters", "positions", "distance", "ablation", "tokens", "cka", "sinks"]
POSITIONS = {
    "vit": "table",
    "beit": "bias",
    "swin": "bias",
    "swinv2": "bias",
    "mobilevit": "none",
    "mobilevitv2": "none",
    "coatnet": "bias",
    **dict.fromkeys(CNNS, "none"),
}


def drawn(family: str) -> Figures:
    batches = [picture(family, batch=4), picture(family, batch=5).flip(0)]
    return draw(make(family), batches, name=f"a small {family}", ablated=1)


def draw(model: nn.Module, batches: list[torch.Tensor], *, name: str, ablated: int = 4) -> Figures:
    """As the task does, of prepared images."""
    with chart_style():
        summary, panels = draw_figures(model, batches, ablated=ablated)
    return Figures(name, summary, panels, ())


def quick_or_slow(names: Iterable[str], quick: Sequence[str]) -> list[Any]:
    return [
        pytest.param(name, marks=() if name in quick else pytest.mark.slow, id=name)
        for name in names
    ]


def check_panels(found: Figures, family: str) -> set[str]:
    """Which figures this family cannot have: it says why."""
    panels = {panel.name: panel for panel in found.panels}
    assert list(panels) == EVERY
    kind = POSITIONS[family]
    assert panels["positions"].numbers["kind"] == kind
    missing = {name for name, panel in panels.items() if panel.figure is None}
    shows_attention = {"distance", "sinks"} if family in CNNS else set()
    assert missing == shows_attention | ({"ablation"} if kind == "none" else set())
    for name in shows_attention:
        assert "this model has none: it is convolutional" in panels[name].caption
    if family in CNNS:
        assert "A convolutional network has no positions" in panels["positions"].caption
    elif kind == "none":
        assert "nothing to take away" in panels["ablation"].caption
        assert "no table of positions and no bias" in panels["positions"].caption
    assert found.summary["images"] == 9
    return missing


def test_a_family_without_positions_says_so() -> None:
    assert check_panels(drawn("mobilevit"), "mobilevit") == {"ablation"}


# a bias in windows is drawn below, in half precision
@pytest.mark.slow
@pytest.mark.parametrize("family", quick_or_slow(FAMILIES, ["vit"]))
def test_every_family_has_every_figure_or_says_why_not(family: str, tmp_path: Path) -> None:
    found = drawn(family)
    missing = check_panels(found, family)
    found.save(tmp_path)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    for name in set(EVERY) - missing:
        file = (tmp_path / f"{name}.svg").read_text(encoding="utf-8")
        assert ElementTree.fromstring(file).tag == "{http://www.w3.org/2000/svg}svg"
        with Image.open(tmp_path / f"{name}.png") as png:
            assert min(png.size) > 150
            assert np.asarray(png.convert("RGB")).std() > 1, f"{name} is blank"
    read = check_page(page)
    assert read.charts == len(EVERY) - len(missing)
    numbers = json.loads((tmp_path / "figures.json").read_text(encoding="utf-8"))
    assert list(numbers["figures"]) == EVERY
    with np.load(tmp_path / "figures.npz") as arrays:
        assert any(name.startswith("distance/") for name in arrays)


@pytest.mark.parametrize("images", [0, pytest.param(4, marks=pytest.mark.slow)])
def test_the_same_model_is_drawn_the_same_way(images: int) -> None:
    batches = [picture("vit", batch=images)] if images else []
    one, two = (
        {
            panel.name: figure_svg(panel.figure, panel.name)
            for panel in draw(make("vit"), batches, name="twice").panels
            if panel.figure
        }
        for _ in range(2)
    )
    assert list(one) == (EVERY if images else EVERY[:2])
    assert one == two


def test_without_images_weights_are_drawn_and_the_rest_says_so(tmp_path: Path) -> None:
    for family in ("vit", "swin", "mobilevit"):
        found = draw(make(family), [], name="<b>no pictures</b>")
        panels = {panel.name: panel for panel in found.panels}
        assert list(panels) == EVERY
        assert panels["filters"].figure is not None
        assert panels["positions"].figure is not None
        assert all(panels[name].caption == NEEDS_IMAGES for name in EVERY[2:])
        found.save(tmp_path / family)
        with pytest.raises(UserError, match=r"is not empty: .* pass overwrite=True"):
            found.save(tmp_path / family)
        page = (tmp_path / family / "report.html").read_text(encoding="utf-8")
        assert "<b>no" not in page
        assert "&lt;b&gt;no pictures" in page


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "kind",
    quick_or_slow(KINDS, ["hybrid", "no head", "registers", "no positions"]),
)
def test_every_kind_of_vit_can_be_drawn(kind: str) -> None:
    config = KINDS[kind]
    torch.manual_seed(0)
    image = torch.randn(4, config.channels, *config.image_size)
    found = draw(ViT(config), [image], name=kind, ablated=1)
    assert [panel.name for panel in found.panels] == EVERY
    json.dumps(found.facts(), allow_nan=False)
    told = found.panels[0].caption
    assert ("begins with convolutions" in told) == (config.stem is not None)


def test_a_model_in_half_precision_is_drawn_from_wider_numbers() -> None:
    found = draw(make("swin", torch.bfloat16), [picture("swin", batch=4)], name="half", ablated=1)
    assert all(panel.figure is not None for panel in found.panels)
    assert {panel.name: panel for panel in found.panels}["positions"].numbers["kind"] == "bias"
    arrays = [array for panel in found.panels for array in panel.arrays.values()]
    assert {array.dtype.itemsize for array in arrays} <= {4, 8}
    assert all(np.isfinite(array).all() for array in arrays)


def test_what_is_gathered_does_not_depend_on_the_batches() -> None:
    model, images = make("swin", torch.float64), picture("swin", torch.float64, batch=8)
    whole = collect_statistics(model, [images])
    parts = collect_statistics(model, [images[:5], images[5:]])
    assert whole.images == parts.images == 8
    for name, values in whole.distance.items():
        torch.testing.assert_close(parts.distance[name], values)
        torch.testing.assert_close(parts.strongest[name], whole.strongest[name])
    for name, norms in whole.norms.items():
        torch.testing.assert_close(parts.norms[name].median, norms.median)
    assert {name: len(tokens) for name, tokens in parts.tokens.items()} == dict.fromkeys(
        whole.tokens, 4
    )
    assert parts.cka.left_out == 3


def test_norms_are_of_steps_that_attend() -> None:
    model = make("coatnet")
    seen = collect_statistics(model, [picture("coatnet")])
    assert list(seen.norms) == ["stages.2.0", "stages.2.1", "stages.3.0"]
    assert len(seen.cka.names) == 6


def test_images_are_shown_as_the_model_sees_them() -> None:
    how = Preprocessing(size=(2, 2), mean=(0.1, 0.2, 0.3), std=(0.5, 0.4, 0.3))
    pixels = torch.rand(1, 3, 2, 2)
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (how.mean, how.std))
    shown = denormalise((pixels - mean) / std, how)
    np.testing.assert_allclose(shown[0], pixels[0].movedim(0, -1), atol=1e-6)
    assert denormalise(torch.rand(2, 13, 4, 4), None).shape == (2, 4, 4, 3)


def test_tiles_are_laid_out_in_reading_order() -> None:
    tiles = np.arange(3 * 2 * 2, dtype=float).reshape(3, 2, 2)
    whole = mosaic(in_rows(tiles, 2))
    assert whole.shape == (5, 5)
    np.testing.assert_array_equal(whole[:2, :2], tiles[0])
    np.testing.assert_array_equal(whole[:2, 3:], tiles[1])
    np.testing.assert_array_equal(whole[3:, :2], tiles[2])
    assert np.isnan(whole[3:, 3:]).all()
    assert np.isnan(whole[2]).all()
    coloured = with_holes(np.stack([whole] * 3, axis=-1) / 12)
    np.testing.assert_array_equal(coloured[..., 3], np.isfinite(whole))


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        draw(make("vit"), [], name="x").save(tmp_path / "file")
