"""What probes read: the same as the model gives, of every family, once for every image."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from tests.models.kinds import KINDS, SMALL
from vitrail import UserError, create
from vitrail.data.preprocess import prepare
from vitrail.data.sources import open_data
from vitrail.inference.features import MAX_BLOCKS, Reading, compute_features, compute_vectors
from vitrail.inference.merging import merge_tokens
from vitrail.models.catalogue import build
from vitrail.models.model import Model
from vitrail.weights.digest import digest_of

DEEP = replace(SMALL, depth=6)


def made(config: Any) -> Model:
    torch.manual_seed(0)
    return build(config).eval()


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Class folders with seven pictures, one of which is none."""
    generator = np.random.default_rng(0)
    for number in range(7):
        folder = tmp_path / "photos" / ("cat" if number % 2 else "dog")
        folder.mkdir(parents=True, exist_ok=True)
        pixels = generator.integers(0, 256, (40, 60, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    (tmp_path / "photos" / "cat" / "3.png").write_bytes(b"no picture")
    return tmp_path / "photos"


def whole(photos: Path) -> Any:
    return open_data(photos, val_share=0)["train"]


class Unreadable:
    """The same source, whose images must not be read."""

    def __init__(self, source: Any) -> None:
        self.source = source
        self.labels, self.targets, self.uniform = source.labels, source.targets, source.uniform
        self.name, self.key, self.fingerprint = source.name, source.key, source.fingerprint

    def __len__(self) -> int:
        return len(self.source)

    def read(self, index: int) -> NDArray[np.uint8]:
        raise AssertionError(f"image {index} was read again")


@pytest.mark.parametrize("workers", [0, 2])
def test_each_image_that_can_be_read_is_what_the_head_reads(photos: Path, workers: int) -> None:
    model, source = made(SMALL), whole(photos)
    reading = Reading(batch_size=2, workers=workers)
    found = compute_features(model, source, name="photos", reading=reading)
    assert list(found.vectors) == ["head"]
    assert found.combinations == {"head": ("head",)}
    assert len(found.broken) == 1
    (path,) = found.broken
    assert path.endswith("3.png")
    assert len(found.indices) == len(found.head) == 6
    for row, index in enumerate(found.indices):
        picture = Image.open(source.name(int(index)))
        with torch.inference_mode():
            expected = model.features(prepare(picture, model.passport.preprocessing)[None])[0]
        np.testing.assert_allclose(found.head[row], expected.numpy(), rtol=1e-4, atol=1e-5)
        label = source.labels[found.targets[row]]
        assert Path(source.name(int(index))).parent.name == label


def test_the_class_token_of_the_last_blocks_and_the_mean_of_the_last_patches() -> None:
    model = made(replace(DEEP, registers=2))
    images = torch.randn(3, 3, 32, 48)
    with torch.inference_mode():
        vectors = compute_vectors(model, images, with_blocks=True)
        x, tokens = model.embed(images), []  # type: ignore[operator]
        for block in model.blocks:  # type: ignore[union-attr]
            x = block(x)
            tokens.append(model.norm(x))  # type: ignore[operator]
    assert list(vectors) == ["head", "class.0", "mean.0", "class.1", "class.2", "class.3"]
    assert MAX_BLOCKS == 4
    for back in range(4):
        torch.testing.assert_close(vectors[f"class.{back}"], tokens[-1 - back][:, 0])
    torch.testing.assert_close(vectors["mean.0"], tokens[-1][:, 3:].mean(dim=1))
    assert torch.equal(vectors["head"], vectors["class.0"])


def test_the_readings_are_those_of_dinov2() -> None:
    torch.manual_seed(0)
    data = open_data("digits")["val"]
    found = compute_features(
        made(replace(DEEP, pool="mean")), data, name="digits", with_blocks=True
    )
    four = ("class.3", "class.2", "class.1", "class.0")
    assert found.combinations == {
        "head": ("head",),
        "class_1": ("class.0",),
        "class_4": four,
        "class_mean_1": ("class.0", "mean.0"),
        "class_mean_4": (*four, "mean.0"),
    }
    # where the head reads the class token, that is no reading of its own
    found = compute_features(made(DEEP), data, name="digits", with_blocks=True)
    assert list(found.combinations) == ["head", "class_4", "class_mean_1", "class_mean_4"]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_vit_has_them(kind: str) -> None:
    model = made(KINDS[kind])
    images = torch.randn(2, model.config.channels, *model.config.image_size)
    with torch.inference_mode():
        vectors = compute_vectors(model, images, with_blocks=True)
        assert torch.equal(vectors["head"], model.features(images))
    first = "class" if model.config.class_token else "mean"
    assert {name for name in vectors if name.startswith(first)} >= {f"{first}.0", f"{first}.1"}
    assert all(piece.shape[0] == 2 and piece.ndim == 2 for piece in vectors.values())


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("name", "width", "widths"),
    [
        ("swin_t", 768, [768, 768, 384, 384]),
        ("swinv2_t", 768, [768, 768, 384, 384]),
        ("coatnet_0", 768, [768, 768, 384, 384]),
        ("mobilevit_xxs", 320, [80, 64, 48]),  # after whose blocks one convolution widens
        ("mobilevitv2_050", 256, [256, 192, 128]),
        ("vq_ti_8", 0, []),  # nothing in it attends: the steps of its encoder
    ],
)
def test_families_without_a_class_token_have_means(
    name: str, width: int, widths: list[int]
) -> None:
    torch.manual_seed(0)
    size = {} if name == "vq_ti_8" else {"num_classes": 3}
    model = create(name, image_size=(64, 96), **size).eval()
    images = torch.randn(2, 3, 64, 96)
    with torch.inference_mode():
        vectors = compute_vectors(model, images, with_blocks=True)
        expected = model.features(images)
    assert torch.equal(vectors["head"], expected)
    assert not [each for each in vectors if each.startswith("class")]
    means = [piece for each, piece in vectors.items() if each.startswith("mean")]
    if widths:
        assert vectors["head"].shape[1] == width
        assert [piece.shape[1] for piece in means] == widths
    assert means
    if name in ("swin_t", "swinv2_t", "mobilevitv2_050"):  # whose head reads the same
        torch.testing.assert_close(vectors["mean.0"], expected, rtol=1e-4, atol=1e-5)
    assert all(not module._forward_hooks for module in model.modules())


def test_what_was_kept_needs_no_image(photos: Path, tmp_path: Path) -> None:
    model, source, cache = made(SMALL), whole(photos), tmp_path / "kept"
    first = compute_features(model, source, name="photos", cache=cache)
    again = compute_features(model, Unreadable(source), name="photos", cache=cache)
    assert (first.cached, again.cached) == (False, True)
    assert again.head.tobytes() == first.head.tobytes()
    assert again.indices.tolist() == first.indices.tolist()
    assert again.targets.tolist() == first.targets.tolist()
    assert again.broken == first.broken
    with pytest.raises(AssertionError, match="was read again"):
        compute_features(model, Unreadable(source), name="photos", cache=None)


def test_features_of_blocks_serve_those_who_want_the_head_only(
    photos: Path, tmp_path: Path
) -> None:
    model, source, cache = made(SMALL), whole(photos), tmp_path / "kept"
    compute_features(model, source, name="photos", cache=cache)
    deep = compute_features(model, source, name="photos", with_blocks=True, cache=cache)
    assert not deep.cached
    assert len(list(cache.iterdir())) == 1
    head = compute_features(model, Unreadable(source), name="photos", cache=cache)
    assert head.head.tobytes() == deep.head.tobytes()


def test_other_weights_another_preparation_or_another_image_are_computed_anew(
    photos: Path, tmp_path: Path
) -> None:
    model, cache = made(SMALL), tmp_path / "kept"
    first = compute_features(model, whole(photos), name="photos", cache=cache)
    before = digest_of(model)
    how = replace(model.passport.preprocessing, interpolation="nearest")
    model.passport = replace(model.passport, preprocessing=how)
    assert digest_of(model) != before
    assert not compute_features(model, whole(photos), name="photos", cache=cache).cached
    with torch.no_grad():
        model.get_parameter("blocks.0.mlp.fc1.bias")[3] += 1e-3
    assert not compute_features(model, whole(photos), name="photos", cache=cache).cached
    Image.new("RGB", (40, 60)).save(photos / "dog" / "new.png")
    more = compute_features(model, whole(photos), name="photos", cache=cache)
    assert not more.cached
    assert len(more.head) == len(first.head) + 1


@pytest.mark.sampled(2)
@pytest.mark.parametrize("damage", [b"", b"nonsense", None])
def test_a_damaged_file_is_written_anew(damage: bytes | None, photos: Path, tmp_path: Path) -> None:
    model, source, cache = made(SMALL), whole(photos), tmp_path / "kept"
    first = compute_features(model, source, name="photos", cache=cache)
    (file,) = cache.iterdir()
    file.write_bytes(file.read_bytes()[:-7] if damage is None else damage)
    again = compute_features(model, source, name="photos", cache=cache)
    assert not again.cached
    assert again.head.tobytes() == first.head.tobytes()
    assert compute_features(model, source, name="photos", cache=cache).cached


def test_a_file_with_other_values_is_not_believed(photos: Path, tmp_path: Path) -> None:
    model, source, cache = made(SMALL), whole(photos), tmp_path / "kept"
    first = compute_features(model, source, name="photos", cache=cache)
    (file,) = cache.iterdir()
    written, values = file.read_bytes(), first.head.tobytes()
    file.write_bytes(written.replace(values, values[:-4] + b"\0\0\x80\x3f"))
    assert file.read_bytes() != written
    again = compute_features(model, source, name="photos", cache=cache)
    assert not again.cached
    assert again.head.tobytes() == values


def test_what_no_probe_can_learn_from(tmp_path: Path, photos: Path) -> None:
    model = made(SMALL)
    images = np.zeros((4, 8, 8), dtype=np.uint8)
    rows = np.array([[1, 1], [0, 1], [1, 0], [0, 0]])
    np.savez(tmp_path / "multi_label.npz", images=images, labels=rows)
    with pytest.raises(UserError, match="must have one label an image"):
        compute_features(model, whole(tmp_path / "multi_label.npz"), name="multi_label")
    np.savez(tmp_path / "none.npz", images=images)
    with pytest.raises(UserError, match="has no labels"):
        compute_features(model, whole(tmp_path / "none.npz"), name="none")
    with torch.no_grad():
        model.get_parameter("blocks.1.mlp.fc2.bias").fill_(float("nan"))
    with pytest.raises(UserError, match="features are NaN or infinite for 6 of 6 images"):
        compute_features(model, whole(photos), name="photos")


def test_a_source_without_one_good_image(photos: Path) -> None:
    for file in photos.rglob("*.png"):
        file.write_bytes(b"no picture")
    with pytest.raises(UserError, match="none of its images can be read"):
        compute_features(made(SMALL), whole(photos), name="photos")


def test_a_merged_model_has_features_of_its_blocks() -> None:
    """Its last block gives merged tokens: each is given to all of its parts again."""
    model = made(DEEP)
    images = torch.randn(2, 3, *model.config.image_size)
    with torch.inference_mode():
        expected = compute_vectors(model, images, with_blocks=True)
        found = compute_vectors(merge_tokens(model, 1), images, with_blocks=True)
        same = compute_vectors(merge_tokens(model, 0), images, with_blocks=True)
    assert {name: one.shape for name, one in found.items()} == {
        name: one.shape for name, one in expected.items()
    }
    for name, values in expected.items():
        torch.testing.assert_close(same[name], values)
        assert not torch.equal(found[name], values)
