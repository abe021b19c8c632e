"""DALL-E's encoder and decoder: its names, and its arithmetic written out from the raw tensors."""

import pytest
import torch
from tests.parity.compare import assert_identical, close
from torch import Tensor
from torch.nn import functional as F

from vitrail import UserError
from vitrail.models.catalogue import shapes_of
from vitrail.models.tokenizer import DALLE as PUBLISHED
from vitrail.models.tokenizer import Tokenizer, TokenizerConfig
from vitrail.weights.checkpoint import read_config
from vitrail.weights.dialect import Foreign
from vitrail.weights.dialects.dalle import DALLE
from vitrail.weights.families.family import Request
from vitrail.weights.rows import Tensors
from vitrail.weights.translate import check_total, write

HIDDEN, WORDS, ENTRY = 16, 40, 12


def published(prefix: str, sides: tuple[int, ...], widths: list[int], seed: int) -> Tensors:
    """A state dict of the shapes that the published modules have, but narrow. `sides` are those
    of the kernels of the input and of a block's four convolutions."""
    generator = torch.Generator().manual_seed(seed)
    tensors: Tensors = {}

    def conv(name: str, width: int, out: int, side: int) -> None:
        shape, scale = (out, width, side, side), (width * side**2) ** -0.5
        noise = torch.randn(shape, generator=generator, dtype=torch.float64)
        tensors[f"{prefix}blocks.{name}.w"] = scale * noise
        tensors[f"{prefix}blocks.{name}.b"] = 0.3 * torch.randn(
            out, generator=generator, dtype=torch.float64
        )

    conv("input", widths[0], widths[1], sides[0])
    before = widths[1]
    for group, width in enumerate(widths[2:-1], start=1):
        for block in (1, 2):
            at = f"group_{group}.block_{block}"
            if before != width:
                conv(f"{at}.id_path", before, width, 1)
            inner = (before, *[width // 4] * 3, width)
            for number in range(4):
                conv(
                    f"{at}.res_path.conv_{number + 1}",
                    inner[number],
                    inner[number + 1],
                    sides[1 + number],
                )
            before = width
    conv("output.conv", before, widths[-1], 1)
    return tensors


def encoder(prefix: str = "") -> Tensors:
    grown = [HIDDEN * 2**g for g in range(4)]
    return published(prefix, (7, 3, 3, 3, 1), [3, HIDDEN, *grown, WORDS], seed=0)


def decoder(prefix: str = "decoder.") -> Tensors:
    shrunk = [HIDDEN * 2**g for g in (3, 2, 1, 0)]
    return published(prefix, (1, 1, 3, 3, 3), [WORDS, ENTRY, *shrunk, 6], seed=1)


def run(tensors: Tensors, x: Tensor, *, between: str) -> Tensor:
    """What the published code computes, step by step, from the tensors as they were stored."""

    def conv(name: str, x: Tensor) -> Tensor:
        weight, bias = tensors[f"blocks.{name}.w"], tensors[f"blocks.{name}.b"]
        return F.conv2d(x, weight, bias, padding=(weight.shape[-1] - 1) // 2)

    x = conv("input", x)
    for group in range(1, 5):
        for block in (1, 2):
            at = f"group_{group}.block_{block}"
            skip = conv(f"{at}.id_path", x) if f"blocks.{at}.id_path.w" in tensors else x
            y = x
            for number in range(1, 5):
                y = conv(f"{at}.res_path.conv_{number}", torch.relu(y))
            x = skip + y / 64  # eight blocks, squared
        if group < 4:
            pool = between == "pool"
            x = F.max_pool2d(x, 2) if pool else F.interpolate(x, scale_factor=2, mode="nearest")
    return conv("output.conv", torch.relu(x))


def understood(tensors: Tensors) -> Tokenizer:
    foreign = Foreign("a file", tensors)
    assert DALLE.claims(foreign)
    request = Request("a file", overrides={"image_size": (32, 48)})
    made, config, _ = read_config(foreign, DALLE, request)
    assert isinstance(config, TokenizerConfig)
    check_total(made, shapes_of(config), tensors, where="a file")
    assert made.coverage.dropped == made.coverage.filled == []
    tokenizer = Tokenizer(config).double().eval()
    tokenizer.load_state_dict(made.state)
    return tokenizer


@pytest.fixture
def image() -> Tensor:
    generator = torch.Generator().manual_seed(2)
    cells = torch.rand(2, 3, 4, 6, generator=generator, dtype=torch.float64)
    return F.interpolate(cells, scale_factor=8)


def test_the_encoder_computes_what_the_published_one_does(image: Tensor) -> None:
    tokenizer = understood(encoder())
    assert (tokenizer.config.depth, tokenizer.config.stages, tokenizer.config.stride) == (2, 4, 8)
    before = DALLE.preprocessing(Foreign("a file", {}), tokenizer.config)
    ours = (image - before.mean[0]) / before.std[0]
    mapped = (1 - 2 * 0.1) * image + 0.1
    close(ours, mapped)
    expected = run(encoder(), mapped, between="pool")
    assert expected.shape == (2, WORDS, 4, 6)
    assert expected.std() > 0.1
    close(tokenizer.encode(ours).movedim(-1, 1), expected)
    assert torch.equal(tokenizer.codes(ours), expected.argmax(1))
    assert len(tokenizer.codes(ours).unique()) > 2


def test_the_decoder_computes_what_the_published_one_does(image: Tensor) -> None:
    tokenizer = understood(encoder("encoder.") | decoder())
    assert tokenizer.config.entry == ENTRY
    codes = tokenizer.codes(image)
    stats = run(decoder(""), F.one_hot(codes, WORDS).double().movedim(-1, 1), between="upsample")
    pixels = ((stats[:, :3].sigmoid() - 0.1) / (1 - 2 * 0.1)).clamp(0, 1)
    assert pixels.std() > 0.01
    close(tokenizer.decode(codes), pixels)


def test_reading_and_writing_are_each_others_inverse() -> None:
    for tensors in (encoder(), encoder("encoder.") | decoder()):
        tokenizer = understood(tensors)
        written = write(DALLE.table, tokenizer.state_dict(), tokenizer.config, where="a file")
        assert_identical(written, tensors)
    prefixed = understood(encoder("encoder."))  # an encoder that somebody named
    assert_identical(prefixed.state_dict(), understood(encoder()).state_dict())


def test_the_published_widths_give_the_published_names() -> None:
    with torch.device("meta"):
        tokenizer = Tokenizer(PUBLISHED)
    shapes = {
        name: tuple(tensor.shape)
        for name, tensor in write(
            DALLE.table, tokenizer.state_dict(), PUBLISHED, where="a file"
        ).items()
    }
    assert shapes["encoder.blocks.input.w"] == (256, 3, 7, 7)
    assert shapes["encoder.blocks.group_1.block_1.res_path.conv_1.w"] == (64, 256, 3, 3)
    assert shapes["encoder.blocks.group_4.block_1.id_path.w"] == (2048, 1024, 1, 1)
    assert shapes["encoder.blocks.output.conv.w"] == (8192, 2048, 1, 1)
    assert shapes["decoder.blocks.group_1.block_1.id_path.w"] == (2048, 128, 1, 1)
    assert shapes["decoder.blocks.group_1.block_1.res_path.conv_2.w"] == (512, 512, 3, 3)
    assert shapes["decoder.blocks.output.conv.w"] == (6, 256, 1, 1)
    assert "encoder.blocks.group_1.block_1.id_path.w" not in shapes


def test_a_decoder_alone_is_refused() -> None:
    for prefix in ("", "decoder."):
        foreign = Foreign("a file", decoder(prefix))
        assert DALLE.claims(foreign)
        with pytest.raises(UserError, match="a decoder alone, which reads no images"):
            read_config(foreign, DALLE, Request("a file"))


def test_a_broken_file_says_what_is_missing() -> None:
    tensors = encoder()
    del tensors["blocks.group_3.block_2.res_path.conv_4.b"]
    with pytest.raises(UserError, match=r"encoder\.stages\.2\.1\.conv4\.bias"):
        understood(tensors)
