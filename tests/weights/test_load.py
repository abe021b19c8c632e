"""Loading: what the file tells, what the person says, and what is refused rather than guessed."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import save_file
from tests.models.kinds import KINDS, SMALL
from torch import nn

from vitrail import UserError, create, load, save
from vitrail.models.catalogue import build
from vitrail.weights.load import open_checkpoint


@pytest.fixture
def native(tmp_path: Path) -> Path:
    return save(build(SMALL), tmp_path / "native")


def timm_file(path: Path, name: str = "vit_tiny_patch16_224", **arguments: Any) -> Path:
    peer = timm.create_model(name, depth=12, num_classes=5, **arguments)
    save_file(peer.state_dict(), path)
    return path


def test_a_published_model_needs_no_words(tmp_path: Path) -> None:
    model = load(timm_file(tmp_path / "a.safetensors"))
    assert (model.config.heads, model.config.grid) == (3, (14, 14))
    assert "the head reads the class token" in model.passport.origin.changes[1]
    assert model.passport.origin.changes[2:] == (
        "3 heads, as every published ViT of width 192 has",
        "14x14: grid of a published size, 224 pixels a side",
    )


def test_two_grids_that_both_fit_are_asked_about(tmp_path: Path) -> None:
    file = timm_file(tmp_path / "a.safetensors", img_size=(112, 448))
    with pytest.raises(
        UserError, match="may be a grid of 7x28 or of 14x14: give the one that the file has"
    ):
        load(file, image_size=(112, 448))
    model = load(file, image_size=(112, 448), grid=(7, 28))
    assert not any("resized" in sentence for sentence in model.passport.origin.changes)
    resized = load(file, image_size=(112, 448), grid=(14, 14))
    assert "positions resized from 14x14 to 7x28 (timm)" in resized.passport.origin.changes


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ({"model": "vit_b_16"}, "its dim is 192, the model you named has 768"),
        ({"model": "deit_ti_16_distilled"}, "its distilled is False, the model you named has True"),
        ({"model": "vit_r_ti_16"}, "the model you named has"),
        ({"grid": (13, 13)}, "but grid is 13x13, which makes 169: correct grid"),
        ({"grid": "ab"}, "grid must be a whole number, or two of them, got 'ab'"),
        ({"image_size": "32"}, "image_size must be a whole number, or two of them, got '32'"),
        ({"heads": 5}, "192 attention channels do not make 5 heads"),
        ({"heads": "x"}, "heads must be a whole number above 0, got 'x'"),
        ({"dialect": "torchvision"}, "names of timm, not of torchvision"),
        ({"dialect": "vit_jax"}, "names of timm, not of vit_jax"),
        ({"dialect": "transformers"}, "names of timm, not of transformers"),
        ({"dim": 96}, "dim is 192 in the trained weights and cannot become 96"),
        ({"image_size": 384, "method": "cubist"}, "unknown method 'cubist'"),
    ],
)
def test_what_does_not_fit_is_told(said: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=sentence):
        load(timm_file(tmp_path / "a.safetensors"), **said)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("kind", "changes", "sentence"),
    [
        ("plain", {"layer_scale": 1e-5}, "layer_scale is None"),
        ("registers", {"layer_scale": None}, "layer_scale is 0.1"),
        ("plain", {"activation": "swiglu"}, "activation is 'gelu'"),
        ("gated", {"activation": "gelu"}, "activation is 'swiglu'"),
        ("plain", {"final_norm": "none"}, "final_norm is 'tokens'"),
    ],
)
def test_a_change_that_needs_other_tensors_is_refused(
    kind: str, changes: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=sentence):
        load(save(build(KINDS[kind]), tmp_path / "m"), **changes)


def test_changes_are_reported_and_old_scores_forgotten(tmp_path: Path) -> None:
    model = build(SMALL)
    model.passport = replace(model.passport, scores={"accuracy": 0.97})
    path = save(model, tmp_path / "m")
    assert load(path).passport.scores == {"accuracy": 0.97}
    changed = load(path, pool="mean", activation="quick_gelu", dropout=0.1).passport
    assert changed.scores == {}
    assert changed.origin.changes == (
        "activation changed from 'gelu' to 'quick_gelu'",
        "pool changed from 'cls' to 'mean'",
    )
    wider = load(path, pool="cls+mean")
    assert "new head for 5 classes, its last layer zero" in wider.passport.origin.changes


def test_new_classes_for_a_pre_trained_model_mean_one_linear_layer(tmp_path: Path) -> None:
    path = save(build(KINDS["pre-training head"]), tmp_path / "m")
    tuned = load(path, num_classes=3)
    assert tuned.config.head == "linear"
    assert [name for name, _ in tuned.get_submodule("head").named_children()] == ["classes"]
    assert load(path, num_classes=3, head="pretrain").config.head == "pretrain"


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", ["plain", "sine positions", "relative positions"])
def test_no_context_of_the_caller_leaks_in(kind: str, tmp_path: Path) -> None:
    path = save(build(KINDS[kind]), tmp_path / "m")
    image = torch.randn(1, 3, 32, 48)
    with torch.device("meta"):
        model = load(path, num_classes=3)
    assert not any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers()))
    with torch.inference_mode():
        model = load(path)
    model(image).sum().backward()
    assert model.get_parameter("head.classes.bias").grad is not None
    with torch.device("meta"):
        empty = create("vit_ti_16", **vars(KINDS[kind]))
    filled = empty.to_empty(device="cpu").eval()
    filled.load_state_dict(model.state_dict())
    assert torch.equal(filled(image), model(image))


def test_precision_is_the_files(tmp_path: Path) -> None:
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        path = save(build(SMALL).to(dtype), tmp_path / str(dtype))
        assert next(iter(open_checkpoint(path).state.values())).dtype is dtype
        model = load(path)
        assert {parameter.dtype for parameter in model.parameters()} == {dtype}
        assert all(parameter.requires_grad for parameter in model.parameters())
        assert not model.training


@pytest.mark.slow
def test_save_takes_the_model_out_of_its_wrappers(tmp_path: Path) -> None:
    model = build(SMALL).eval()
    image = torch.randn(1, 3, 32, 48)
    for number, wrapped in enumerate((torch.compile(model), nn.DataParallel(model))):
        path = save(wrapped, tmp_path / str(number))  # type: ignore[arg-type]
        assert torch.equal(load(path)(image), model(image))


def test_what_could_not_be_loaded_is_not_saved(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="a Linear is no Vitrail model"):
        save(nn.Linear(2, 2), tmp_path / "m")  # type: ignore[arg-type]
    model = build(SMALL)
    model.head.classes = nn.Linear(32, 7)  # type: ignore[union-attr]
    with pytest.raises(UserError, match=r"head.classes.weight must have the shape \(5, 32\)"):
        save(model, tmp_path / "m")
    model = build(SMALL)
    model.passport = replace(model.passport, labels=("a", "b"))
    with pytest.raises(UserError, match="labels must be as many as the 5 classes, got 2"):
        save(model, tmp_path / "m")
    with pytest.raises(UserError, match="meta device"):
        save(build(SMALL).to("meta"), tmp_path / "m")
    assert not list(tmp_path.iterdir())


def test_a_card_may_be_edited(native: Path) -> None:
    (native / "README.md").write_text("# Mine now\n")
    assert load(native).config == SMALL
    (native / "README.md").unlink()
    assert load(native).config == SMALL


def test_the_average_is_read_and_what_was_left_is_told(tmp_path: Path) -> None:
    peer = timm.create_model("vit_tiny_patch16_224", depth=1, num_classes=5)
    raw = peer.state_dict()
    mean = {name: tensor + 1 for name, tensor in raw.items()}
    junk = {"loss": torch.tensor(1.0), "best": torch.tensor(2.0), "epoch": 3}
    torch.save({"state_dict": raw, "state_dict_ema": mean, **junk}, tmp_path / "run.pth")
    opened = open_checkpoint(tmp_path / "run.pth", overrides={"heads": 3}, grid=(14, 14))
    assert torch.equal(opened.state["cls"], mean["cls_token"])
    assert "read from its entry state_dict_ema, and not from state_dict" in opened.notes


@pytest.mark.sampled(2)
@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "model.", "module._orig_mod."])
@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_prefixes_of_wrappers_are_no_part_of_names(
    prefix: str, suffix: str, tmp_path: Path
) -> None:
    peer = timm.create_model("vit_tiny_patch16_224", depth=1, num_classes=5)
    state = {prefix + name: tensor for name, tensor in peer.state_dict().items()}
    file = tmp_path / f"wrapped{suffix}"
    torch.save(state, file) if suffix == ".pth" else save_file(state, file)
    assert load(file, heads=3, grid=(14, 14)).config.depth == 1


def test_the_directory_of_a_run_is_told_from_a_model(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").touch()
    with pytest.raises(UserError, match="is a run directory, not a model: it has saved no"):
        load(tmp_path)
    (tmp_path / "best").mkdir()
    with pytest.raises(UserError, match=f"not a model: use {tmp_path / 'best'}"):
        load(tmp_path)


def test_what_is_no_source_is_one_sentence() -> None:
    with pytest.raises(UserError, match="must be a path, a hub id or a module, got OrderedDict"):
        load(create("vit_ti_16", depth=1, image_size=32).state_dict())  # type: ignore[arg-type]
