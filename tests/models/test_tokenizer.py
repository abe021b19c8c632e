"""Tokenizers: grids of visual tokens, reconstructed; what they refuse; what their table says."""

from dataclasses import asdict, replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from vitrail import UserError
from vitrail.core.passport import Passport, Preprocessing
from vitrail.models.tokenizer import (
    VARIANTS,
    Tokenizer,
    TokenizerConfig,
    pixels_of,
    squeeze_pixels,
)

SMALL = TokenizerConfig(
    words=24, width=32, stages=3, depth=2, entry=6, code_dim=4, image_size=(16, 24)
)
both_kinds = pytest.mark.parametrize("kind", ["dvae", "vq"])


def make(kind: str = "dvae", dtype: torch.dtype = torch.float64, **fields: Any) -> Tokenizer:
    """A small tokenizer whose every parameter matters, and which reads pixels from -1 to 1."""
    torch.manual_seed(0)
    changes: dict[str, Any] = {"kind": kind, **fields}
    config = replace(SMALL, **changes)
    tokenizer = Tokenizer(config)
    with torch.no_grad():
        for parameter in tokenizer.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    half = (0.5,) * config.channels
    tokenizer.passport = Passport(
        family="tokenizer",
        config=asdict(config),
        preprocessing=Preprocessing(size=config.image_size, mean=half, std=half),
    )
    return tokenizer.to(dtype).eval()


def picture(channels: int = 3, size: tuple[int, int] = (16, 24), batch: int = 3) -> Tensor:
    """Cells of one colour each, and noise."""
    generator = torch.Generator().manual_seed(1)
    cells = torch.rand(batch, channels, size[0] // 4, size[1] // 4, generator=generator)
    noise = torch.rand(batch, channels, *size, generator=generator)
    return (0.8 * F.interpolate(cells, size) + 0.2 * noise).double() * 2 - 1


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", VARIANTS)
def test_the_table_says_what_a_variant_costs(name: str) -> None:
    row = VARIANTS[name]
    with torch.device("meta"):
        model = Tokenizer(row.config).to("meta")
        image = torch.empty(1, row.config.channels, *row.config.image_size)
    assert sum(parameter.numel() for parameter in model.parameters()) == row.params
    with FlopCounterMode(display=False) as counter:
        assert model(image).shape == (1, row.config.words)
    assert counter.get_total_flops() // 2 == row.macs


@pytest.mark.sampled(2)
@both_kinds
@pytest.mark.parametrize(("channels", "size"), [(3, (16, 24)), (1, (8, 4)), (5, (20, 32))])
def test_a_picture_becomes_a_grid_of_words_and_pixels_again(
    kind: str, channels: int, size: tuple[int, int]
) -> None:
    """Of any size that cells divide, not the config's alone."""
    tokenizer = make(kind, channels=channels)
    image, grid = picture(channels, size), (size[0] // 4, size[1] // 4)
    fits, codes = tokenizer.encode(image), tokenizer.codes(image)
    assert fits.shape == (3, *grid, 24)
    assert codes.shape == (3, *grid)
    assert codes.dtype == torch.int64
    assert torch.equal(codes, fits.argmax(-1))
    assert len(codes.unique()) > 1
    reconstructed = tokenizer.decode(codes)
    assert reconstructed.shape == image.shape
    assert 0 <= reconstructed.min() < reconstructed.max() <= 1
    torch.testing.assert_close(tokenizer(image), fits.flatten(1, 2).mean(1))


@both_kinds
def test_painting_single_words_is_painting_a_mixture_of_one(kind: str) -> None:
    tokenizer = make(kind)
    codes = tokenizer.codes(picture())
    one_hot = F.one_hot(codes, 24).double()
    mixed = one_hot if tokenizer.book is None else one_hot @ tokenizer.book()
    expected = pixels_of(tokenizer.require_decoder()(mixed.movedim(-1, 1)))
    torch.testing.assert_close(tokenizer.decode(codes), expected)


def test_the_nearest_direction_is_the_word() -> None:
    tokenizer = make("vq")
    assert tokenizer.book is not None
    cells, book = tokenizer.project_cells(picture()), tokenizer.book()
    ones = torch.ones(24, dtype=torch.float64)
    torch.testing.assert_close(book.norm(dim=1), ones)
    distances = torch.cdist(cells.flatten(0, 2), book)
    assert torch.equal(distances.argmin(1), tokenizer.codes(picture()).flatten())


def test_the_middle_of_what_was_painted_is_the_pixel() -> None:
    pixels = torch.linspace(0, 1, 11, dtype=torch.float64).view(1, 1, 1, 11)
    squeezed = squeeze_pixels(pixels)
    torch.testing.assert_close(
        squeezed.flatten()[[0, 5, 10]], torch.tensor([0.1, 0.5, 0.9]).double()
    )
    width = torch.full_like(pixels, 7.0)
    torch.testing.assert_close(pixels_of(torch.cat([squeezed.logit(), width], 1)), pixels)
    beyond = torch.tensor([-9.0, 9.0]).view(1, 1, 1, 2)
    assert pixels_of(torch.cat([beyond, beyond], 1)).flatten().tolist() == [0.0, 1.0]


@both_kinds
def test_everything_is_in_the_state_dict_and_is_trained(kind: str) -> None:
    tokenizer = make(kind)
    again = Tokenizer(tokenizer.config).double()
    again.load_state_dict(tokenizer.state_dict())
    assert torch.equal(again.encode(picture()), tokenizer.encode(picture()))
    assert {name for name, _ in tokenizer.named_parameters()} == set(tokenizer.state_dict())
    reconstructed = tokenizer.require_decoder()(tokenizer.project_cells(picture()).movedim(-1, 1))
    (reconstructed.sum() + tokenizer.encode(picture()).square().sum()).backward()
    idle = [name for name, p in tokenizer.named_parameters() if p.grad is None or not p.grad.any()]
    assert idle == []


def test_blocks_are_named_as_their_parameters_are() -> None:
    tokenizer = make()
    assert list(tokenizer.blocks_by_depth())[:3] == [
        f"encoder.stages.{s}" for s in ("0.0", "0.1", "1.0")
    ]
    assert len(tokenizer.blocks_by_depth()) == 12
    for name, block in tokenizer.blocks_by_depth().items():
        assert tokenizer.get_submodule(name) is block


def test_an_encoder_alone_does_not_paint() -> None:
    tokenizer = make(decoder=False)
    codes = tokenizer.codes(picture())
    with pytest.raises(UserError, match="has no decoder, so it cannot reconstruct"):
        tokenizer.decode(codes)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"num_classes": 10}, "num_classes must be 0, got 10: a tokenizer has no classes"),
        ({"drop_path": 0.1}, "drop_path must be 0, got 0.1"),
        ({"words": 1}, "words must be at least 2, got 1"),
        ({"stages": 9}, "stages must be at most 8"),
        ({"width": 10}, "width a multiple of 4"),
        ({"depth": 0}, "depth must be at least 1, got 0"),
        ({"image_size": (16, 18)}, "image side 18 is not a multiple of the cell 4: use 16 or 20"),
    ],
)
def test_a_config_that_makes_no_sense_is_refused(fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        replace(SMALL, **fields)


def test_a_picture_that_cells_do_not_divide_is_refused() -> None:
    with pytest.raises(UserError, match="image side 23 is not a multiple of the cell 4"):
        make().codes(picture(3, (16, 23)))
    with pytest.raises(UserError, match="this model reads"):
        make().codes(picture(1))
