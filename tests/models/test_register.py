"""A family of somebody else's: registered by a call, or by the entry point of a package."""

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from vitrail import UserError, capture, create, list_models, load, register_family, save
from vitrail.core.layout import TokenLayout
from vitrail.layers.attention import SelfAttention
from vitrail.layers.head import Head
from vitrail.layers.patch import PatchEmbedding
from vitrail.models.catalogue import FAMILIES, find
from vitrail.models.config import Config, Shape
from vitrail.models.model import Model, tokens_to_map
from vitrail.models.variant import Variant
from vitrail.models.vit import ViTConfig


@dataclass(frozen=True, kw_only=True)
class TinyConfig(Config):
    dim: Shape[int] = 8

    @property
    def features(self) -> int:
        return self.dim

    @property
    def tokens(self) -> int:
        return self.layout.tokens

    @property
    def layout(self) -> TokenLayout:
        return TokenLayout(grid=(self.image_size[0] // 8, self.image_size[1] // 8), stride=8)


class Tiny(Model):
    def __init__(self, config: TinyConfig) -> None:
        super().__init__()
        self.config = config
        self.patches = PatchEmbedding(config.channels, config.dim, 8)
        self.attention = SelfAttention(
            config.layout, dim=config.dim, heads=2, dim_head=config.dim // 2
        )
        self.attach_head()

    def forward(self, image: Tensor) -> Tensor:
        logits: Tensor = self.head(self.features(image))
        return logits

    def features(self, image: Tensor) -> Tensor:
        return self.encode(image).mean(dim=1)

    def encode(self, image: Tensor) -> Tensor:
        tokens: Tensor = self.attention(self.patches(self.check(image)))
        return tokens

    def attach_head(self) -> None:
        self.head = Head(self.config.features, self.config.num_classes)

    def blocks_by_depth(self) -> dict[str, nn.Module]:
        return {"attention": self.attention}

    def map_shape(self, block: str) -> tuple[int, int]:
        return self.config.dim, 8

    def to_map(self, output: Tensor) -> Tensor:
        return tokens_to_map(output, self.config.layout)


VARIANTS = {"tiny_8": Variant(TinyConfig(image_size=(32, 48)), params=0, macs=0)}


@pytest.fixture
def tiny() -> Iterator[None]:
    register_family(
        "tiny", config=TinyConfig, model=Tiny, variants=VARIANTS, aliases={"petite": "tiny_8"}
    )
    yield
    del FAMILIES["tiny"]


@pytest.mark.usefixtures("tiny")
def test_a_new_family_does_what_the_others_do(tmp_path: Path) -> None:
    assert list_models("tiny*") == ["tiny_8"]
    assert find("petite") is VARIANTS["tiny_8"].config
    model = create("tiny_8", num_classes=3, dim=16).eval()
    images = torch.randn(2, 3, 32, 48)
    with capture(model) as maps:
        assert model(images).shape == (2, 3)
    assert [tuple(one.weights.shape) for one in maps.values()] == [(2, 2, 24, 24)]
    assert model.intermediates(images)[0].shape == (2, 16, 4, 6)
    assert model.preprocess(torch.zeros(9, 9, 3, dtype=torch.uint8).numpy()).shape[1:] == (
        3,
        32,
        48,
    )
    again = load(save(model, tmp_path / "tiny")).eval()
    assert isinstance(again, Tiny)
    assert torch.equal(again(images), model(images))
    assert again.passport.family == "tiny"
    assert model.reset_head(7)(images).shape == (2, 7)


def test_without_its_package_a_checkpoint_is_refused(tmp_path: Path, tiny: None) -> None:
    save(create("tiny_8"), tmp_path / "tiny")
    family = FAMILIES.pop("tiny")
    try:
        with pytest.raises(UserError, match=r"unknown family 'tiny', .*installed\?"):
            load(tmp_path / "tiny")
    finally:
        FAMILIES["tiny"] = family


@pytest.mark.usefixtures("tiny")
def test_names_that_are_taken_are_refused() -> None:
    with pytest.raises(UserError, match="vit is a built-in family"):
        register_family("vit", config=TinyConfig, model=Tiny, variants={})
    with pytest.raises(
        UserError, match="config ViTConfig must be the family's own, got that of vi"
    ):
        register_family("mine", config=ViTConfig, model=Tiny, variants={})

    class Other(TinyConfig):
        pass

    with pytest.raises(UserError, match="tiny_8 is a model of the family tiny: the family mine"):
        register_family("mine", config=Other, model=Tiny, variants=VARIANTS)
    register_family("tiny", config=TinyConfig, model=Tiny, variants=VARIANTS)  # again is no mistake


MODULE = """
from dataclasses import dataclass
from vitrail.models.catalogue import Family
from vitrail.models.variant import Variant
from vitrail.models.vit import ViT, ViTConfig

@dataclass(frozen=True, kw_only=True)
class PetiteConfig(ViTConfig):
    pass

ROW = PetiteConfig(dim=32, depth=1, heads=2, mlp_dim=32, patch_size=8, image_size=(32, 32))
FAMILY = Family(PetiteConfig, ViT, {"petite_32": Variant(ROW, params=0, macs=0)})
"""
ACT = """
import json, sys
sys.path.insert(0, sys.argv[1])
import vitrail
quiet = "petite" not in sys.modules and "torch" not in sys.modules
vitrail.create("vit_ti_16", depth=1)
lazy = "petite" not in sys.modules
model = vitrail.create("petite_32", num_classes=2)
path = vitrail.save(model, sys.argv[2])
again = vitrail.load(path)
print(json.dumps([quiet, lazy, again.passport.family, vitrail.list_models("petite*")]))
"""


def install(folder: Path, value: str) -> None:
    """What an installer leaves behind: a module and the metadata of its package."""
    facts = folder / "petite-1.0.dist-info"
    facts.mkdir(parents=True)
    (folder / "petite.py").write_text(MODULE)
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: petite\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text(f"[vitrail.families]\npetite = {value}\n")


def run_python(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.alone
def test_an_installed_package_brings_a_family(tmp_path: Path) -> None:
    install(tmp_path / "site", "petite:FAMILY")
    result = run_python(ACT, str(tmp_path / "site"), str(tmp_path / "model"))
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout) == [True, True, "petite", ["petite_32"]]


@pytest.mark.alone
@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ("petite:GONE", "petite of the package petite cannot be imported (AttributeError"),
        ("petite:ROW", "must be a vitrail.models.catalogue.Family, got PetiteConfig"),
    ],
)
def test_a_package_that_does_not_fit_is_named(tmp_path: Path, value: str, sentence: str) -> None:
    install(tmp_path / "site", value)
    result = run_python(ACT, str(tmp_path / "site"), str(tmp_path / "model"))
    assert sentence in result.stderr
