"""vit-pytorch's ViT through our rows and back, as it is and as it was, and a real model of it."""

import gzip
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from vit_pytorch import ViT

from tests.golden import golden
from tests.parity.compare import (
    assert_identical,
    assert_same,
    close,
    images,
    shaken,
    write_blank,
    write_safetensors,
)
from vitrail import load
from vitrail.core.errors import UserError
from vitrail.models.vit import ViTConfig
from vitrail.weights.convert import convert
from vitrail.weights.dialects.vit_pytorch import VIT_PYTORCH, VIT_PYTORCH_OLD
from vitrail.weights.files import read_foreign, read_tensors
from vitrail.weights.load import open_checkpoint

SMALL: dict[str, Any] = {
    "image_size": (32, 48), "patch_size": 8, "num_classes": 7, "dim": 48, "depth": 3, "heads": 4,
    "mlp_dim": 80, "dim_head": 16,
}  # fmt: skip

KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "heads as wide as the model": {"dim_head": 12},
    "one head": {"heads": 1, "dim_head": 16},
    "one head as wide as the model": {"heads": 1, "dim_head": 48},
    "mean pooling": {"pool": "mean"},
    "one channel": {"channels": 1},
    "five channels": {"channels": 5},
}


def branches(blocks: Iterable[Any], *names: str) -> nn.ModuleList:
    """The attention and the MLP of every block: vit-pytorch adds them up outside any module."""
    return nn.ModuleList(
        [getattr(block, name) for block in blocks for name in names]
        if names
        else [part for block in blocks for part in block]
    )


def said_of(arguments: dict[str, Any]) -> dict[str, Any]:
    """What these files do not tell."""
    said = {"heads": arguments["heads"], "image_size": arguments["image_size"]}
    return said | ({"channels": 5} if arguments.get("channels") == 5 else {})


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", KINDS)
def test_equals_vit_pytorch_and_back(kind: str, tmp_path: Path) -> None:
    arguments = SMALL | KINDS[kind]
    peer = shaken(ViT(**arguments))
    source = write_safetensors(peer, tmp_path / "peer.safetensors")
    image, said = images(arguments.get("channels", 3), 32, 48), said_of(arguments)

    ours = load(source, **said)
    parts = (
        branches(ours.blocks_by_depth().values(), "attention", "mlp"),
        branches(peer.transformer.layers),
    )
    assert_same(ours, peer, image, blocks=parts)

    convert(source, tmp_path / "native", to="vitrail", changes=said)
    convert(tmp_path / "native", tmp_path / "back.safetensors", to="vit_pytorch")
    back = load_file(tmp_path / "back.safetensors")
    assert_identical(back, load_file(source))
    again = ViT(**arguments).double().eval()
    again.load_state_dict(back, strict=True)
    close(again(image), peer(image))


def test_without_a_head_it_gives_its_tokens(tmp_path: Path) -> None:
    peer = shaken(ViT(**SMALL | {"num_classes": 0}))
    source = write_safetensors(peer, tmp_path / "peer.safetensors")
    ours: Any = load(source, heads=4, image_size=(32, 48))
    assert ours.config.num_classes == 0
    assert_same(ours, peer, images(3, 32, 48), mine=lambda model, x: ours.encode(x))


ERAS: dict[str, dict[str, Any]] = {
    "until 2023-02": {"patch_norm": False, "prenorm": True},
    "until 2023-08": {"patch_norm": True, "prenorm": True},
    "until 2025-11": {"patch_norm": True, "prenorm": False},
}


def aged(peer: Any, *, patch_norm: bool, prenorm: bool) -> dict[str, Tensor]:
    """Makes today's model compute as it once did, and gives its tensors by their old names."""
    if not patch_norm:
        cut, _, project, _ = peer.to_patch_embedding
        peer.to_patch_embedding = nn.Sequential(cut, project)
    if prenorm:
        peer.mlp_head = nn.Sequential(peer.transformer.norm, peer.mlp_head)
        peer.transformer.norm = nn.Identity()
    state = dict(peer.state_dict())
    for name in ("pos_embedding", "cls_token"):
        state[name] = state[name][None]
    return {old_name(name) if prenorm else name: tensor for name, tensor in state.items()}


def old_name(name: str) -> str:
    name = re.sub(r"(layers\.\d+\.0)\.to_", r"\1.fn.to_", name)
    name = re.sub(r"(layers\.\d+\.1)\.net\.0\.", r"\1.norm.", name)
    name = re.sub(r"(layers\.\d+\.1)\.net\.1\.", r"\1.fn.net.0.", name)
    return re.sub(r"(layers\.\d+\.1)\.net\.4\.", r"\1.fn.net.3.", name)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("kind", "pool"),
    [
        ("plain", "mean"),
        ("one head as wide as the model", "cls"),
        ("one channel", "mean"),
        pytest.param("plain", "cls", marks=pytest.mark.slow),
        pytest.param("one head as wide as the model", "mean", marks=pytest.mark.slow),
        pytest.param("one channel", "cls", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("era", ERAS)
def test_equals_what_vit_pytorch_was_and_back(
    era: str, kind: str, pool: str, tmp_path: Path
) -> None:
    arguments = SMALL | KINDS[kind]
    peer = shaken(ViT(**arguments))
    source = tmp_path / "old.safetensors"
    save_file({name: t.contiguous() for name, t in aged(peer, **ERAS[era]).items()}, source)
    said = said_of(arguments)
    if pool == "mean":  # of all tokens, as it was then; the file does not specify
        peer.pool = "mean"
        said["pool"] = "all"

    ours = load(source, **said)
    parts = (
        branches(ours.blocks_by_depth().values(), "attention", "mlp"),
        branches(peer.transformer.layers),
    )
    assert_same(ours, peer, images(arguments.get("channels", 3), 32, 48), blocks=parts)

    convert(source, tmp_path / "native", to="vitrail", changes=said)
    convert(tmp_path / "native", tmp_path / "back.safetensors", to="vit_pytorch-old")
    assert_identical(load_file(tmp_path / "back.safetensors"), load_file(source))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", KINDS)
def test_a_module_in_memory_needs_no_answers(kind: str) -> None:
    """Heads, pooling, patches, channels and dropout are read from its parts."""
    rates = {"dropout": 0.1, "emb_dropout": 0.2}
    arguments = SMALL | KINDS[kind] | rates
    peer = shaken(ViT(**arguments))
    channels = arguments.get("channels", 3)
    ours = load(peer, image_size=(32, 48))
    assert ours.config.heads == arguments["heads"]
    assert (ours.config.dropout, ours.config.embed_dropout) == (0.1, 0.2)
    assert_same(ours, peer, images(channels, 32, 48))
    square = shaken(ViT(**arguments | {"image_size": 32}))
    assert_same(load(square), square, images(channels, 32, 32))


class ThreeAxes(ViT):  # type: ignore[misc]
    """As it was from August 2023 to November 2025: tables of three axes, and a mean over all
    tokens."""

    def __init__(self, pool: str) -> None:
        super().__init__(**SMALL)
        self.pool = pool
        for name in ("cls_token", "pos_embedding"):
            setattr(self, name, nn.Parameter(getattr(self, name).detach()[None]))

    def forward(self, image: Tensor) -> Tensor:
        x = self.to_patch_embedding(image)
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], dim=1) + self.pos_embedding
        x = self.transformer(self.dropout(x))
        logits: Tensor = self.mlp_head(x.mean(dim=1) if self.pool == "mean" else x[:, 0])
        return logits


@pytest.mark.parametrize("pool", ["cls", "mean"])
def test_an_older_module_in_memory_pools_as_it_did(pool: str) -> None:
    peer = shaken(ThreeAxes(pool))
    ours = load(peer, image_size=(32, 48))
    assert ours.passport.origin.dialect == "vit_pytorch-old"
    assert ours.config.pool == ("all" if pool == "mean" else "cls")
    assert_same(ours, peer, images(3, 32, 48))


def test_the_newest_of_the_old_become_new(tmp_path: Path) -> None:
    """Since August 2023 only the tables have changed their shape."""
    peer = shaken(ViT(**SMALL))
    source = tmp_path / "old.safetensors"
    state = aged(peer, patch_norm=True, prenorm=False)
    save_file({name: t.contiguous() for name, t in state.items()}, source)
    convert(source, tmp_path / "new.safetensors", to="vit_pytorch", changes=said_of(SMALL))
    ViT(**SMALL).double().load_state_dict(load_file(tmp_path / "new.safetensors"), strict=True)
    assert_identical(load_file(tmp_path / "new.safetensors"), peer.state_dict())


def test_one_file_is_claimed_once(tmp_path: Path) -> None:
    now = write_safetensors(ViT(**SMALL), tmp_path / "now.safetensors")
    foreign = read_foreign(now)
    assert VIT_PYTORCH.claims(foreign)
    assert not VIT_PYTORCH_OLD.claims(foreign)
    then = aged(ViT(**SMALL), patch_norm=False, prenorm=True)
    torch.save(then, tmp_path / "then.pt")
    foreign = read_foreign(tmp_path / "then.pt")
    assert VIT_PYTORCH_OLD.claims(foreign)
    assert not VIT_PYTORCH.claims(foreign)


def test_asks_for_the_heads(tmp_path: Path) -> None:
    """One head of 64 beside the width and depth of a published ViT makes no published ViT."""
    with torch.device("meta"):
        peer = ViT(
            image_size=32, patch_size=16, num_classes=2, dim=192, depth=12, heads=1, mlp_dim=768
        )
    source = write_blank(peer, tmp_path / "peer.safetensors")
    with pytest.raises(UserError, match="how many heads"):
        load(source)


@pytest.mark.parametrize(
    ("patch", "channels", "sentence"),
    [((8, 16), 3, "384 values do not make a square patch"), ((8, 8), 5, "give channels=N, or p")],
)
def test_asks_for_channels_of_a_square_patch(
    patch: tuple[int, int], channels: int, sentence: str, tmp_path: Path
) -> None:
    peer = ViT(**SMALL | {"patch_size": patch, "channels": channels})
    source = write_safetensors(peer, tmp_path / "peer.safetensors")
    with pytest.raises(UserError, match=sentence):
        load(source, heads=4)


def test_a_person_can_name_a_rectangle(tmp_path: Path) -> None:
    peer = shaken(ViT(**SMALL | {"patch_size": (8, 16)}))
    source = write_safetensors(peer, tmp_path / "peer.safetensors")
    ours = load(source, heads=4, patch_size=(8, 16), image_size=(32, 48))
    assert_same(ours, peer, images(3, 32, 48))
    convert(
        source,
        tmp_path / "native",
        to="vitrail",
        changes={"heads": 4, "patch_size": (8, 16), "image_size": (32, 48)},
    )
    convert(tmp_path / "native", tmp_path / "back.safetensors", to="vit_pytorch")
    assert_identical(load_file(tmp_path / "back.safetensors"), load_file(source))


def test_refuses_files_whose_scale_is_unknown(tmp_path: Path) -> None:
    state = aged(ViT(**SMALL), patch_norm=False, prenorm=True)
    early = {
        re.sub(r"(layers\.\d+\.\d)\.", r"\1.fn.", name): tensor for name, tensor in state.items()
    }
    torch.save(early, tmp_path / "early.pt")
    with pytest.raises(UserError, match="before April 2021"):
        load(tmp_path / "early.pt", heads=4)


def test_an_output_projection_has_no_place_beside_a_lone_head(tmp_path: Path) -> None:
    peer = shaken(ViT(**SMALL | {"heads": 2, "dim_head": 24}))
    source = write_safetensors(peer, tmp_path / "peer.safetensors")
    with pytest.raises(UserError, match="projects nothing where the only head"):
        convert(
            source,
            tmp_path / "back.safetensors",
            to="vit_pytorch",
            changes={"heads": 1, "image_size": (32, 48)},
        )


NOW: dict[str, Any] = {
    "dim": 48, "depth": 1, "heads": 4, "mlp_dim": 80, "patch_norm": True, "qkv_bias": "none",
}  # fmt: skip


@pytest.mark.parametrize(
    ("dialect", "fields", "sentence"),
    [
        (VIT_PYTORCH, {}, None),
        (VIT_PYTORCH, {"pool": "mean", "class_token": False}, None),
        (VIT_PYTORCH, {"pool": "mean"}, 'none with pool="mean"'),
        (VIT_PYTORCH, {"pool": "all"}, "does not support pool='all'"),
        (VIT_PYTORCH, {"patch_norm": False}, "does not support patch_norm=False"),
        (VIT_PYTORCH, {"qkv_bias": "qkv"}, "does not support qkv_bias='qkv'"),
        (VIT_PYTORCH, {"final_norm": "pooled"}, "does not support final_norm='pooled'"),
        (VIT_PYTORCH_OLD, {}, None),
        (VIT_PYTORCH_OLD, {"pool": "all"}, None),
        (VIT_PYTORCH_OLD, {"final_norm": "pooled", "patch_norm": False}, None),
        (VIT_PYTORCH_OLD, {"patch_norm": False}, "norms patches wherever"),
        (VIT_PYTORCH_OLD, {"activation": "swiglu"}, "no gated MLP"),
    ],
)
def test_says_what_it_can_hold(dialect: Any, fields: dict[str, Any], sentence: str | None) -> None:
    why = dialect.reason_unsupported(ViTConfig(**NOW | fields))
    assert why is None if sentence is None else sentence in why


# A model that somebody trained on MNIST with vit-pytorch of 2021 or 2022.
DIGITS = "mnist/mnist_vit_researchase.pt"


def digits() -> tuple[Tensor, Tensor]:
    """The 10,000 test digits as that model was fed, and what they are."""

    def idx(name: str, header: int) -> Any:
        with gzip.open(golden(f"mnist/{name}.gz")) as file:
            return np.frombuffer(file.read(), dtype=np.uint8, offset=header)

    pixels = torch.tensor(idx("t10k-images-idx3-ubyte", 16)).view(-1, 1, 28, 28)
    return (pixels / 255 - 0.1307) / 0.3081, torch.tensor(idx("t10k-labels-idx1-ubyte", 8))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("count", "right"), [(1_000, 964), pytest.param(10_000, 9_725, marks=pytest.mark.slow)]
)
def test_a_real_model_reads_digits(count: int, right: int) -> None:
    model = load(golden(DIGITS), heads=4)
    assert model.config.image_size == (28, 28)
    assert (model.config.patch_size, model.config.channels, model.config.dim_head) == (4, 1, 64)
    pictures, labels = digits()
    with torch.inference_mode():
        batches = pictures[:count].split(500)
        guesses = torch.cat([model(batch).argmax(dim=1) for batch in batches])
    assert len(labels) == 10_000
    assert int((guesses == labels[:count]).sum()) == right


def test_a_real_model_comes_back_as_it_was(tmp_path: Path) -> None:
    source = golden(DIGITS)
    opened = open_checkpoint(source, overrides={"heads": 4})
    assert opened.dialect == "vit_pytorch-old"
    assert any("square grid" in note for note in opened.notes)
    convert(source, tmp_path / "native", to="vitrail", changes={"heads": 4})
    convert(tmp_path / "native", tmp_path / "back.pt", to="vit_pytorch-old")
    assert_identical(read_tensors(tmp_path / "back.pt"), read_tensors(source))
