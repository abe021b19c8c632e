"""Conversion tells what a reader on the other side will take for granted, and loses nothing in
silence."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import load_file
from tests.models.kinds import KINDS, SMALL

import vitrail
from vitrail import UserError, create, load, save
from vitrail.core.passport import Preprocessing
from vitrail.models.catalogue import build
from vitrail.models.vit import ViTConfig
from vitrail.weights.convert import convert
from vitrail.weights.dialects import DIALECTS

SQUARE = replace(SMALL, image_size=(32, 32))


def saved(config: ViTConfig, path: Path, **passport: Any) -> Path:
    torch.manual_seed(0)
    model = build(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    model.passport = replace(model.passport, **passport)
    return save(model, path)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"activation": "gelu_tanh"}, "activation"),
        ({"activation": "quick_gelu"}, "activation"),
        ({"norm_eps": 1e-3}, "norm_eps"),
        ({"pool": "mean"}, "pool"),
    ],
)
@pytest.mark.parametrize("to", ["timm", "transformers-vit", "torchvision", "vit_jax"])
def test_a_file_that_loses_what_is_computed_says_so(
    changes: dict[str, Any], field: str, to: str, tmp_path: Path
) -> None:
    native = saved(replace(SQUARE, **changes), tmp_path / "native")
    out = tmp_path / ("out.npz" if to == "vit_jax" else "out.safetensors")
    if field == "pool" and to != "timm":  # a dialect that cannot hold it at all refuses
        with pytest.raises(UserError, match="pool"):
            convert(native, out, to=to)
        return
    done = convert(native, out, to=to)
    back = load(out, heads=4, grid=(4, 4), dialect=to)
    lost = getattr(back.config, field) != changes[field]
    told = any(sentence.startswith(f"{field} is ") for sentence in done.cautions)
    assert told == lost


@pytest.mark.parametrize("to", ["timm", "transformers-vit"])
def test_a_directory_that_keeps_everything_has_nothing_to_warn_of(to: str, tmp_path: Path) -> None:
    how = Preprocessing(size=(32, 32), mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6))
    labels = ("a", "b", "c", "d", "e")
    config = replace(SQUARE, activation="gelu_tanh")
    native = saved(config, tmp_path / "native", preprocessing=how, labels=labels)
    done = convert(native, tmp_path / "out", to=to)
    assert done.cautions == ()
    back = load(tmp_path / "out")
    assert back.passport.labels == labels
    assert back.passport.preprocessing == how
    image = torch.randn(2, 3, 32, 32)
    assert torch.equal(back(image), load(native)(image))


def test_labels_and_preparation_that_get_lost_are_told(tmp_path: Path) -> None:
    how = Preprocessing(size=(32, 32), mean=(0.1, 0.2, 0.3))
    native = saved(SQUARE, tmp_path / "native", preprocessing=how, labels=tuple("abcde"))
    cautions = convert(native, tmp_path / "out.npz", to="vit_jax").cautions
    assert any("does not store preprocessing" in sentence for sentence in cautions)
    assert any("names of the classes" in sentence for sentence in cautions)


def test_a_file_that_would_be_read_as_another_dialect_says_so(tmp_path: Path) -> None:
    native = saved(SQUARE, tmp_path / "native")
    cautions = convert(native, tmp_path / "out.pth", to="deit").cautions
    assert any(
        'it is read as timm: to load it later, give dialect="deit"' in sentence
        for sentence in cautions
    )


CLIP = replace(KINDS["clip"], image_size=(32, 32), norm_eps=1e-5)
TIMM = {
    "clip": CLIP,
    "no positions": replace(SQUARE, positions="none"),
    "registers, folded": replace(SQUARE, registers=2, prefix_positions=0, layer_scale=0.1),
    "mean": replace(SQUARE, pool="mean", final_norm="pooled"),
    "no class token": replace(SQUARE, pool="mean", class_token=False),
    "distilled": replace(SQUARE, distilled=True),
    "gated": replace(SQUARE, activation="swiglu"),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", TIMM)
def test_timm_builds_every_kind_that_is_written_for_it(kind: str, tmp_path: Path) -> None:
    native = saved(TIMM[kind], tmp_path / "native")
    convert(native, tmp_path / "timm", to="timm")
    theirs = timm.create_model(f"local-dir:{tmp_path / 'timm'}", pretrained=True).eval()
    image = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(theirs(image), load(native)(image), rtol=1e-4, atol=1e-5)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "config",
    [
        replace(SQUARE, embed_norm=True),
        replace(SQUARE, patch_bias=False),
        replace(SQUARE, distilled=True, prefix_positions=0),
        replace(SQUARE, distilled=True, registers=1),
        replace(SQUARE, registers=2),
    ],
)
def test_what_timm_could_not_build_is_refused(config: ViTConfig, tmp_path: Path) -> None:
    native = saved(config, tmp_path / "native")
    with pytest.raises(UserError, match="the timm dialect gives"):
        convert(native, tmp_path / "timm", to="timm")
    assert not (tmp_path / "timm").exists()


@pytest.fixture(scope="module")
def natives(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[ViTConfig, Path]]:
    """A checkpoint of every kind of model, for all dialects to write."""
    directory = tmp_path_factory.mktemp("natives")
    configs = {kind: replace(config, image_size=(32, 32)) for kind, config in KINDS.items()}
    return {
        kind: (config, saved(config, directory / str(number)))
        for number, (kind, config) in enumerate(configs.items())
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    "dialect", [d for d in DIALECTS if d.family == "vit"], ids=lambda dialect: dialect.name
)
def test_every_dialect_refuses_or_keeps_every_bit(
    dialect: Any, natives: dict[str, tuple[ViTConfig, Path]], tmp_path: Path
) -> None:
    """All kinds of model into all dialects and back."""
    kept = 0
    for number, (kind, (config, native)) in enumerate(natives.items()):
        try:
            convert(native, tmp_path / f"out{number}", to=dialect.name)
        except UserError:
            continue
        said = {"heads": config.heads, "channels": config.channels}
        again = tmp_path / f"again{number}"
        convert(
            tmp_path / f"out{number}",
            again,
            to="vitrail",
            dialect=dialect.name,
            grid=config.grid,
            changes=said,
        )
        before, after = (load_file(path / "model.safetensors") for path in (native, again))
        shared = before.keys() & after.keys()
        different = [name for name in shared if before[name].shape == after[name].shape]
        different = [name for name in different if not torch.equal(before[name], after[name])]
        assert not different, (kind, different)
        # what one side has more than the other is zero: a slot, a bias
        for name in before.keys() ^ after.keys():
            assert not (before | after)[name].any(), (kind, name)
        kept += 1
    clip = {"openai_clip", "open_clip", "transformers-clip", "vit_pytorch", "open_clip-timm"}
    assert kept or dialect.name in clip or "dinov2" in dialect.name or "old" in dialect.name


@pytest.mark.parametrize("size", [224, 256, 384])
@pytest.mark.parametrize("more", [0, 1, 2, 18, 24, 32, 54, 64])
def test_a_crop_share_gives_the_resize_back(size: int, more: int) -> None:
    resize = size + more
    share = Preprocessing(size=(size, size), resize=(resize, resize)).crop_share
    assert math.floor(size / share) == resize


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["out.safetensor", "out.nzp", "out.safetensors2"])
def test_a_misspelt_suffix_is_no_directory(name: str, tmp_path: Path) -> None:
    native = saved(SQUARE, tmp_path / "native")
    with pytest.raises(UserError, match="did you mean"):
        convert(native, tmp_path / name, to="timm")
    assert not (tmp_path / name).exists()


def test_mean_and_std_of_a_file_that_has_none_are_kept(tmp_path: Path) -> None:
    model = create("vit_ti_16", image_size=32, depth=1, num_classes=2)
    vitrail.save(model, tmp_path / "plain")
    vitrail.convert(tmp_path / "plain", tmp_path / "mine", mean=(0.1,), std=(0.2, 0.3, 0.4))
    found = vitrail.load(tmp_path / "mine").passport.preprocessing
    assert (found.mean, found.std) == ((0.1, 0.1, 0.1), (0.2, 0.3, 0.4))
    with pytest.raises(UserError, match="mean must have 1 or 3 numbers"):
        vitrail.convert(tmp_path / "plain", tmp_path / "other", mean=(1, 2))
