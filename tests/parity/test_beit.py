"""BEiT through our rows and back: timm's, and the authors', whose model timm's is a copy of."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import load_file
from timm.models.beit import Beit, checkpoint_filter_fn, gen_relative_position_index
from torch import Tensor

from tests.models.test_beit import SMALL as CONFIG
from tests.parity.compare import assert_identical, assert_same, images, shaken, write_safetensors
from vitrail import UserError, create, load, save
from vitrail.core.passport import IMAGENET_MEAN
from vitrail.models.catalogue import find
from vitrail.weights.checkpoint import read_config
from vitrail.weights.convert import convert
from vitrail.weights.dialect import Foreign
from vitrail.weights.dialects import DIALECTS, beit, recognise
from vitrail.weights.families.family import Request
from vitrail.weights.files import read_foreign, read_tensors
from vitrail.weights.load import open_checkpoint

State = dict[str, Tensor]

SMALL: dict[str, Any] = {
    "img_size": (32, 48), "patch_size": 8, "embed_dim": 48, "depth": 3, "num_heads": 4,
    "num_classes": 7, "use_abs_pos_emb": False, "use_rel_pos_bias": True, "init_values": 0.1,
}  # fmt: skip
SHARED = {"use_rel_pos_bias": False, "use_shared_rel_pos_bias": True}
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "square": {"img_size": 32},
    "narrow mlp": {"mlp_ratio": 2},
    "no layer scale": {"init_values": None},
    "no head": {"num_classes": 0},
    "one channel": {"in_chans": 1},
    "class token": {"global_pool": "token"},
    "shared": SHARED,
    "pre-trained": SHARED | {"global_pool": "token", "num_classes": 0},
}


def peer(**arguments: Any) -> Any:
    return shaken(Beit(**SMALL | arguments))


def size_of(arguments: dict[str, Any]) -> tuple[int, int]:
    size = (SMALL | arguments)["img_size"]
    return (size, size) if isinstance(size, int) else size


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", KINDS)
def test_equals_timm_and_back(kind: str, tmp_path: Path) -> None:
    theirs, size = peer(**KINDS[kind]), size_of(KINDS[kind])
    source = write_safetensors(theirs, tmp_path / "peer.safetensors")
    ours = load(source, image_size=size)
    assert ours.passport.origin.dialect == "timm-beit"
    image = images(KINDS[kind].get("in_chans", 3), *size)
    assert_same(ours, theirs, image, blocks=(ours.blocks_by_depth().values(), theirs.blocks))
    assert_same(
        ours, theirs, image, mine=lambda m, x: m.encode(x), call=lambda m, x: m.forward_features(x)
    )

    save(ours, tmp_path / "native")
    convert(tmp_path / "native", tmp_path / "back.safetensors", to="timm")
    assert_identical(load_file(tmp_path / "back.safetensors"), load_file(source))
    again = Beit(**SMALL | KINDS[kind]).double().eval()
    again.load_state_dict(load_file(tmp_path / "back.safetensors"))
    assert_same(ours, again, image)


NARROW = {"embed_dim": 96, "num_heads": 4}


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("beit_base_patch16_224", {"img_size": 32}),
        ("beit_base_patch16_384", {"img_size": 48}),
        ("beitv2_base_patch16_224", {"img_size": 32, "global_pool": "token"}),
        ("beit_base_patch16_224", {"img_size": 32, **SHARED}),
    ],
)
def test_timm_builds_what_we_write(name: str, arguments: dict[str, Any], tmp_path: Path) -> None:
    """timm itself makes the same model from our directory, config.json and all."""
    theirs = shaken(timm.create_model(name, num_classes=5, depth=1, **NARROW, **arguments))
    source = write_safetensors(theirs, tmp_path / "peer.safetensors")
    convert(source, tmp_path / "timm", to="timm")
    assert_identical(load_file(tmp_path / "timm" / "model.safetensors"), load_file(source))
    built = timm.create_model(f"local-dir:{tmp_path / 'timm'}", pretrained=True)
    side = arguments["img_size"]
    image = images(3, side, side).float()
    torch.testing.assert_close(built.eval()(image), theirs.float()(image))
    assert load(tmp_path / "timm").config == load(source).config
    assert load(tmp_path / "timm").passport.origin.changes == ()  # config.json told everything


@pytest.fixture
def _double() -> Iterator[None]:
    """timm computes where old distances lie in the default precision."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.sampled(2)
@pytest.mark.usefixtures("_double")
@pytest.mark.filterwarnings("ignore:Using a non-tuple sequence", "ignore:torch.searchsorted")
@pytest.mark.parametrize("arguments", [{}, SHARED], ids=["own", "shared"])
@pytest.mark.parametrize("size", [(48, 48), (16, 16), (24, 64), (32, 48)])
def test_resizing_equals_timm(
    size: tuple[int, int], arguments: dict[str, Any], tmp_path: Path
) -> None:
    square = peer(img_size=32, **arguments).float().double()  # it rounds a table to float32
    source = write_safetensors(square, tmp_path / "peer.safetensors")
    ours = load(source, image_size=size)
    resized = f"relative bias resized from 4x4 to {size[0] // 8}x{size[1] // 8} (timm)"
    assert resized in ours.passport.origin.changes
    theirs = Beit(**SMALL | arguments | {"img_size": size}).double().eval()
    theirs.load_state_dict(checkpoint_filter_fn(square.state_dict(), theirs))
    assert_same(
        ours, theirs, images(3, *size), blocks=(ours.blocks_by_depth().values(), theirs.blocks)
    )


# microsoft/unilm


def authors(theirs: Any) -> State:
    """A timm model as the authors' code saves it: with the index of every table."""
    state, grid = dict(theirs.state_dict()), theirs.patch_embed.grid_size
    for name in [name for name in state if name.endswith("relative_position_bias_table")]:
        index = name.replace("bias_table", "index")
        state[index] = gen_relative_position_index(grid)
    return state


def pre_training(*, v2: bool = False) -> tuple[Any, State]:
    """An encoder, and the file of its pre-training: mask token, words, and a second head in v2."""
    theirs = peer(img_size=32, global_pool="token", num_classes=0, **SHARED)
    state = authors(theirs)
    state |= {"mask_token": torch.ones(1, 1, 48), "lm_head.weight": torch.ones(9, 48)}
    state |= {"lm_head.bias": torch.ones(9)}
    if v2:
        inside = [name for name in state if name.startswith("blocks.0.")]
        state |= {name.replace("blocks.0", "cls_pt_layers.0"): state[name] for name in inside}
    return theirs, {name: tensor.clone() for name, tensor in state.items()}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("container", ["model", "module"])
@pytest.mark.parametrize("dialect", ["beit", "beitv2"])
def test_authors_fine_tuned(dialect: str, container: str, tmp_path: Path) -> None:
    theirs = peer(img_size=32)
    source = tmp_path / "beit_base_patch16_224_pt22k_ft1k.pth"
    torch.save({container: authors(theirs)}, source)
    ours = load(source, dialect=None if dialect == "beit" else dialect)
    assert ours.passport.origin.dialect == dialect
    assert_same(
        ours, theirs, images(3, 32, 32), blocks=(ours.blocks_by_depth().values(), theirs.blocks)
    )
    dropped = open_checkpoint(source, dialect=dialect).coverage.dropped
    assert {name for name, _ in dropped} == {
        f"blocks.{i}.attn.relative_position_index" for i in range(3)
    }

    convert(source, tmp_path / "native", to="vitrail", dialect=dialect)
    convert(tmp_path / "native", tmp_path / "back.pth", to=dialect)
    assert torch.load(tmp_path / "back.pth", weights_only=True).keys() == {"model"}
    assert_identical(read_tensors(tmp_path / "back.pth"), authors(theirs))


@pytest.mark.parametrize("v2", [False, True], ids=["v1", "v2"])
def test_authors_pre_trained(v2: bool, tmp_path: Path) -> None:
    theirs, state = pre_training(v2=v2)
    source = tmp_path / "pretrained.pth"
    torch.save({"model": state}, source)
    opened = open_checkpoint(source)
    assert opened.dialect == ("beitv2" if v2 else "beit")
    dropped = dict(opened.coverage.dropped)
    encoder = theirs.state_dict().keys()
    assert dropped.keys() == state.keys() - encoder
    assert "hidden patches" in dropped["mask_token"]
    assert "visual words" in dropped["lm_head.bias"]
    ours = load(source)
    assert (ours.config.relative_bias, ours.config.pool) == ("shared", "cls")
    assert_same(
        ours, theirs, images(3, 32, 32), blocks=(ours.blocks_by_depth().values(), theirs.blocks)
    )
    assert_same(
        ours,
        theirs,
        images(3, 32, 32),
        mine=lambda m, x: m.encode(x),
        call=lambda m, x: m.forward_features(x),
    )
    convert(source, tmp_path / "back.pth", to="beit")
    back = read_tensors(tmp_path / "back.pth")
    assert_identical(back, {name: state[name] for name in state if name in back})
    assert encoder <= back.keys()


@pytest.mark.parametrize("size", [(32, 32), (48, 48)])
def test_new_classes_for_a_pre_trained_encoder_mean_fine_tuning(
    size: tuple[int, int], tmp_path: Path
) -> None:
    """As the authors' run_class_finetuning does: a bias for each block, a new norm and head."""
    _, state = pre_training()
    source = tmp_path / "pretrained.pth"
    torch.save({"model": state}, source)
    ours = load(source, num_classes=5, image_size=size)
    assert ours.config == replace(
        load(source).config, num_classes=5, relative_bias="block", pool="mean", image_size=size
    )
    said = [sentence for sentence in ours.passport.origin.changes if "[-1, 1]" not in sentence]
    assert said == [
        "pool changed from 'cls' to 'mean'",
        *(["relative bias resized from 4x4 to 6x6 (paper)"] if size != (32, 32) else []),
        "the relative bias that all blocks shared copied to each of the 3",
        "the norm starts anew, because it norms something else",
        "new head for 5 classes, its last layer zero",
    ]
    tuned = ours.state_dict()
    assert torch.equal(tuned["norm.weight"], torch.ones(48))
    shared = load(source, image_size=size).state_dict()["relative.table"]
    for i in range(3):
        assert torch.equal(tuned[f"blocks.{i}.relative.table"], shared)
    # each block of its own from here on, computing what the shared one did
    assert (
        tuned["blocks.0.relative.table"].data_ptr() != tuned["blocks.1.relative.table"].data_ptr()
    )
    before, after = load(source, image_size=size), load(source, image_size=size, pool="mean")
    assert (before.config.pool, after.config.pool) == ("cls", "mean")
    torch.testing.assert_close(
        ours.encode(images(3, *size)), after.encode(images(3, *size)), rtol=0, atol=1e-12
    )


def test_a_shared_bias_can_be_copied_by_name_and_never_merged(tmp_path: Path) -> None:
    theirs = peer(img_size=32, **SHARED)
    source = write_safetensors(theirs, tmp_path / "peer.safetensors")
    ours = load(source, relative_bias="block")
    assert_same(ours, theirs, images(3, 32, 32))
    save(ours, tmp_path / "own")
    with pytest.raises(UserError, match="each block of this BEiT has a relative bias of its own"):
        load(tmp_path / "own", relative_bias="shared")
    # it has a head already: other classes are no reason to touch the bias
    assert load(source, num_classes=3).config.relative_bias == "shared"


def test_a_named_model_says_what_the_file_does_not(tmp_path: Path) -> None:
    _, state = pre_training()
    foreign = Foreign("pretrained.pth", state)
    named = replace(CONFIG, dim=48, depth=3, mlp_dim=192, layer_scale=0.25, image_size=(224, 224))
    _, config, _ = read_config(foreign, beit.BEIT, Request("pretrained.pth", named))
    assert config == replace(
        named, image_size=(32, 32), num_classes=0, pool="cls", relative_bias="shared"
    )
    with pytest.raises(UserError, match="its depth is 3, the model you named has 4"):
        read_config(foreign, beit.BEIT, Request("pretrained.pth", replace(named, depth=4)))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("dialect", "side", "resize", "mean"),
    [
        ("beit", 224, 256, 0.5),
        ("beit", 384, 384, 0.5),
        ("beitv2", 224, 256, IMAGENET_MEAN[0]),
        ("timm-beit", 224, 248, 0.5),
        ("timm-beit", 512, 512, 0.5),
    ],
)
def test_preprocessing(dialect: str, side: int, resize: int, mean: float, tmp_path: Path) -> None:
    theirs = Beit(**SMALL | {"img_size": side, "patch_size": 32, "depth": 1})
    source = write_safetensors(theirs, tmp_path / "peer.safetensors")
    before = load(source, dialect=dialect).passport.preprocessing
    assert (before.size, before.resize) == ((side, side), (resize, resize))
    assert (before.interpolation, before.mean[0]) == ("bicubic", mean)


@pytest.mark.parametrize("name", timm.list_pretrained(["beit_*", "beitv2_*"]))
def test_preprocessing_is_what_timm_publishes(name: str) -> None:
    """config.json of a hub's directory tells v2 from v1, and large from base."""
    published: Any = timm.models.get_pretrained_cfg(name)
    told = json.loads(json.dumps(published.to_dict()))
    config = find(name)
    foreign = Foreign(name, {}, {"config.json": {"architecture": name, "pretrained_cfg": told}})
    before = beit.TIMM_BEIT.preprocessing(foreign, config)
    assert before.size == tuple(told["input_size"][1:])
    assert before.crop_share == pytest.approx(told["crop_pct"], rel=5e-3)
    assert (list(before.mean), list(before.std)) == (told["mean"], told["std"])
    assert before.interpolation == told["interpolation"]
    assert beit.TIMM_BEIT.licence(foreign) == "apache-2.0"
    if not name.startswith("beitv2"):  # and for v1 nothing has to be told
        assert beit.TIMM_BEIT.preprocessing(Foreign(name, {}), config) == before


def test_a_file_is_claimed_once(tmp_path: Path) -> None:
    _, v1 = pre_training()
    _, v2 = pre_training(v2=True)
    theirs = peer(img_size=32)
    files = {
        "beit": [v1, authors(theirs)],
        "beitv2": [v2],
        "timm-beit": [theirs.state_dict(), peer(**SHARED).state_dict()],
        "timm": [timm.create_model("vit_tiny_patch16_224", depth=1).state_dict()],
    }
    for name, states in files.items():
        for state in states:
            foreign = Foreign(name, state)
            claimants = [dialect.name for dialect in DIALECTS if dialect.claims(foreign)]
            # a plain ViT has the same names in timm, DeiT and DINO, of which timm comes first
            assert (claimants[:1] if name == "timm" else claimants) == [name]
            assert recognise(foreign).name == name
    # old versions of timm kept the index too, and a config.json tells whose a file is
    named = {"architecture": "beit_base_patch16_224"}
    foreign = Foreign("hub", authors(theirs), {"config.json": named})
    assert [d.name for d in DIALECTS if d.claims(foreign)] == ["timm-beit"]
    assert recognise(foreign, "timm").name == "timm-beit"


@pytest.mark.parametrize(
    ("said", "grid", "sentence"),
    [
        ({}, (4, 5), "its 52 relations are not those of a grid of 4x5"),
        ({"image_size": (8, 200)}, None, "52 relations may be those of a grid of 1x25 or of 4x4"),
    ],
)
def test_a_grid_that_is_open_is_asked_for(
    said: dict[str, Any], grid: tuple[int, int] | None, sentence: str, tmp_path: Path
) -> None:
    source = write_safetensors(peer(img_size=32), tmp_path / "peer.safetensors")
    with pytest.raises(UserError, match=sentence):
        load(source, grid=grid, **said)


def test_a_grid_that_is_not_square_is_asked_for(tmp_path: Path) -> None:
    theirs = peer()
    source = write_safetensors(theirs, tmp_path / "peer.safetensors")
    with pytest.raises(
        UserError, match="it holds 80 relations, and nothing known so far specifies"
    ):
        load(source)
    kinds: tuple[dict[str, Any], ...] = ({"grid": (4, 6)}, {"image_size": (32, 48)})
    for said in kinds:
        assert_same(load(source, **said), theirs, images(3, 32, 48))
    assert load(source, grid=(4, 6), image_size=64).config.grid == (8, 8)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("to", "changes", "sentence"),
    [
        ("beit", {"image_size": (32, 48)}, "supports square grids only"),
        ("transformers-beit", {"image_size": (32, 48)}, "confuses rows and columns"),
        ("timm", {"activation": "gelu_tanh"}, "computes the exact GELU, not gelu_tanh"),
        ("torchvision", {}, "supports no beit"),
        ("mae", {}, "supports no beit"),
    ],
)
def test_what_their_code_cannot_compute_is_not_written(
    to: str, changes: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    source = write_safetensors(peer(img_size=32), tmp_path / "peer.safetensors")
    with pytest.raises(UserError, match=sentence):
        convert(source, tmp_path / "out", to=to, changes=changes)
    assert not (tmp_path / "out").exists()


def test_from_the_authors_to_everybody_and_back(tmp_path: Path) -> None:
    """Every bit arrives, whoever stands between."""
    state = authors(peer(img_size=32))
    source = tmp_path / "beit.pth"
    torch.save({"model": state}, source)
    for number, to in enumerate(("timm", "transformers", "transformers-v4", "vitrail", "beit")):
        out = tmp_path / f"{number}-{to}"
        convert(source, out, to=to)
        source = out
    assert_identical(read_tensors(source / "model.pth"), state)


def test_a_fresh_model_can_be_written_and_read(tmp_path: Path) -> None:
    model = create("beit_b_16", depth=1, dim=24, heads=2, mlp_dim=48, image_size=32, num_classes=2)
    save(model, tmp_path / "fresh")
    done = convert(tmp_path / "fresh", tmp_path / "timm", to="timm")
    assert done.cautions == ()
    assert load(tmp_path / "timm").config == model.config
    assert read_foreign(tmp_path / "timm").sidecars["config.json"]["model_args"]["num_heads"] == 2
