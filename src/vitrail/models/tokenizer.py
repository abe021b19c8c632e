"""Visual tokenizers: an image as a grid of words out of a vocabulary that images taught.

    image ── encoder ── word of each cell ── codes ── decoder ── pixels
    B C H W             B rows columns V     B r c              B C H W

Both kinds have the networks of DALL-E (arXiv:2102.12092), whose public weights fit: convolutions
whose branches count little, halved by max-pooling and doubled again. A "dvae" scores every word by
itself; a "vq" (1711.00937) points somewhere, and the word that points nearest is meant (directions
alone count, 2110.04627). A tokenizer has no classes: it is for what is trained on its words.
Axes: B batch · C channels · H W image · D width · V words
"""

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.core.errors import UserError
from vitrail.layers.norm import unit_length
from vitrail.models.config import Classifier, Config, Input, Shape
from vitrail.models.limits import check_counts, check_multiple
from vitrail.models.model import Model
from vitrail.models.variant import Variant

MOST_STAGES = 8
# Pixels from 0 to 1 are brought to [0.1, 0.9] before their logit is taken, which is finite there.
MARGIN = 0.1


@dataclass(frozen=True, kw_only=True)
class TokenizerConfig(Config):
    """Everything that decides what a tokenizer computes.

    Each stage has `depth` blocks and is twice as wide as the one before, on half as many rows and
    columns; the decoder goes the same way back. An encoder alone cannot reconstruct images.
    """

    image_size: Input[tuple[int, int]] = (256, 256)
    num_classes: Classifier[int] = 0
    kind: Shape[Literal["dvae", "vq"]] = "dvae"
    words: Shape[int] = 8192
    width: Shape[int] = 256  # of the first stage
    stages: Shape[int] = 4
    depth: Shape[int] = 2  # blocks of a stage
    code_dim: Shape[int] = 8  # in how many dimensions the words of a "vq" point
    entry: Shape[int] = 128  # how wide the decoder begins
    decoder: Shape[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        counts = ("width", "stages", "depth", "code_dim", "entry")
        check_counts(self, *counts, least=1)
        check_counts(self, "words", least=0)
        if self.num_classes:
            raise UserError(
                f"num_classes must be 0, got {self.num_classes}: a tokenizer has no classes; BEiT "
                "is pre-trained on its tokens"
            )
        if self.drop_path:
            raise UserError(
                f"drop_path must be 0, got {self.drop_path}: a tokenizer has no paths to drop"
            )
        if self.words < 2:
            raise UserError(f"words must be at least 2, got {self.words}")
        if self.stages > MOST_STAGES or self.width % 4:
            raise UserError(
                f"stages must be at most {MOST_STAGES} and width a multiple of 4, got "
                f"{self.stages} and {self.width}"
            )
        check_multiple(self.image_size, self.stride, "the cell")

    @property
    def stride(self) -> int:
        """Pixels a side for one word."""
        return 2 ** (self.stages - 1)

    @property
    def widths(self) -> tuple[int, ...]:
        return tuple(self.width * 2**stage for stage in range(self.stages))

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of words."""
        height, width = self.image_size
        return height // self.stride, width // self.stride

    @property
    def gain(self) -> float:
        """What a branch counts: the deeper the network, the less."""
        return 1 / (self.stages * self.depth) ** 2

    @property
    def features(self) -> int:
        return self.words

    @property
    def tokens(self) -> int:
        return self.grid[0] * self.grid[1]


DALLE = TokenizerConfig()
READER = replace(DALLE, decoder=False, image_size=(112, 112))
S = TokenizerConfig(words=2048, width=64, depth=1, entry=64, image_size=(128, 128))
TI = replace(S, words=512, width=16, entry=32)

# DALL-E's, with its decoder and as the encoder that BEiT uses; and small ones to train.
# fmt: off
VARIANTS = {
    "dalle": Variant(DALLE, params=97_616_006, macs=136_147_107_840),
    "dalle_encoder": Variant(READER, params=53_786_240, macs=26_059_407_360),
    "dvae_s_8": Variant(S, params=3_674_918, macs=1_269_825_536),
    "dvae_ti_8": Variant(TI, params=243_678, macs=108_265_472),
    "vq_s_8": Variant(replace(S, kind="vq"), params=2_514_286, macs=1_006_764_032),
    "vq_ti_8": Variant(replace(TI, kind="vq"), params=166_694, macs=92_831_744),
}
# fmt: on


class Block(nn.Module):
    """A narrow branch of four convolutions beside a path that changes nothing but the width.

    `sides` are those of the four kernels."""

    def __init__(self, width: int, out: int, sides: tuple[int, ...], gain: float) -> None:
        super().__init__()
        self.gain = gain
        narrow = out // 4
        self.skip = nn.Conv2d(width, out, 1) if width != out else nn.Identity()
        self.conv1 = same_conv(width, narrow, sides[0])
        self.conv2 = same_conv(narrow, narrow, sides[1])
        self.conv3 = same_conv(narrow, narrow, sides[2])
        self.conv4 = same_conv(narrow, out, sides[3])

    def forward(self, x: Float[Tensor, "B D H W"]) -> Float[Tensor, "B E H W"]:
        y = x
        for conv in (self.conv1, self.conv2, self.conv3, self.conv4):
            y = conv(F.relu(y))
        return self.skip(x) + self.gain * y


class Encoder(nn.Module):
    """From pixels to what each cell says, in `out` numbers."""

    def __init__(self, config: TokenizerConfig, out: int) -> None:
        super().__init__()
        widths = (config.width, *config.widths)
        self.input = same_conv(config.channels, config.width, 7)
        self.stages = nn.ModuleList(
            stage(before, width, (3, 3, 3, 1), config) for before, width in pairwise(widths)
        )
        self.output = nn.Conv2d(config.widths[-1], out, 1)

    def forward(self, image: Float[Tensor, "B C H W"]) -> Float[Tensor, "B V rows columns"]:
        x = self.input(image)
        for number, blocks in enumerate(self.stages):
            x = blocks(F.max_pool2d(x, 2) if number else x)
        return self.output(F.relu(x))


class Decoder(nn.Module):
    """From words, mixed or single, to the logit of each pixel, and how far it may be wrong."""

    def __init__(self, config: TokenizerConfig, words: int) -> None:
        super().__init__()
        widths = (config.entry, *reversed(config.widths))
        self.input = nn.Conv2d(words, config.entry, 1)
        self.stages = nn.ModuleList(
            stage(before, width, (1, 3, 3, 3), config) for before, width in pairwise(widths)
        )
        self.output = nn.Conv2d(config.width, 2 * config.channels, 1)

    def forward(self, words: Float[Tensor, "B V rows columns"]) -> Float[Tensor, "B CC H W"]:
        return self.reconstruct(self.input(words))

    def reconstruct(self, x: Float[Tensor, "B E rows columns"]) -> Float[Tensor, "B CC H W"]:
        for number, blocks in enumerate(self.stages):
            x = blocks(F.interpolate(x, scale_factor=2.0) if number else x)
        return self.output(F.relu(x))

    def of_codes(self, codes: Int[Tensor, "B rows columns"]) -> Float[Tensor, "B CC H W"]:
        """The same for single words, which are looked up rather than multiplied with."""
        kernel, bias = self.input.weight[:, :, 0, 0], self.input.bias
        assert bias is not None
        return self.reconstruct((F.embedding(codes, kernel.mT) + bias).movedim(-1, 1))


class Codebook(nn.Module):
    """The directions of all words. One layer turns them together, so that words which no image
    chose move with those which some did, and few are left behind (arXiv:2411.02038)."""

    def __init__(self, words: int, dim: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.empty(words, dim))
        self.turn = nn.Linear(dim, dim, bias=False)

    def forward(self) -> Float[Tensor, "V E"]:
        return unit_length(self.turn(self.table))


class Tokenizer(Model):
    """
    >>> tokenizer = Tokenizer(replace(TI, image_size=(32, 48)))
    >>> tokenizer.codes(torch.zeros(2, 3, 32, 48)).shape
    torch.Size([2, 4, 6])
    """

    any_size = True

    def __init__(self, config: TokenizerConfig) -> None:
        super().__init__()
        self.config = config
        width = config.words if config.kind == "dvae" else config.code_dim
        self.encoder = Encoder(config, width)
        self.book = Codebook(config.words, width) if config.kind == "vq" else None
        self.decoder = Decoder(config, width) if config.decoder else None
        self.init_weights()

    def forward(self, image: Float[Tensor, "B C H W"]) -> Float[Tensor, "B V"]:
        return self.features(image)

    def features(self, image: Float[Tensor, "B C H W"]) -> Float[Tensor, "B V"]:
        return self.encode(image).mean(dim=(1, 2))

    def encode(self, image: Float[Tensor, "B C H W"]) -> Float[Tensor, "B rows columns V"]:
        """The score of every visual token in every cell: a logit, or a cosine."""
        cells = self.project_cells(image)
        return cells if self.book is None else F.linear(cells, self.book())

    def codes(self, image: Float[Tensor, "B C H W"]) -> Int[Tensor, "B rows columns"]:
        """The visual token with the highest score in each cell."""
        return self.encode(image).argmax(dim=-1)

    def decode(self, codes: Int[Tensor, "B rows columns"]) -> Float[Tensor, "B C H W"]:
        """Pixels from 0 to 1."""
        return pixels_of(self.reconstruct(codes))

    def reconstruct(self, codes: Int[Tensor, "B rows columns"]) -> Float[Tensor, "B CC H W"]:
        """The output of the decoder: location and scale of each pixel's distribution."""
        decoder = self.require_decoder()
        if self.book is None:
            return decoder.of_codes(codes)
        return decoder(F.embedding(codes, self.book()).movedim(-1, 1))

    def project_cells(self, image: Float[Tensor, "B C H W"]) -> Float[Tensor, "B rows columns E"]:
        """The output of the encoder for each cell: logits of all tokens, or a unit vector."""
        cells = self.encoder(self.check(image)).movedim(1, -1)
        return cells if self.book is None else unit_length(cells)

    def require_decoder(self) -> Decoder:
        if self.decoder is None:
            raise UserError(
                "this tokenizer has no decoder, so it cannot reconstruct images: load it with its "
                "decoder"
            )
        return self.decoder

    def check(self, image: Float[Tensor, "B C H W"]) -> Float[Tensor, "B C H W"]:
        image = super().check(image)
        height, width = image.shape[2:]
        check_multiple((height, width), self.config.stride, "the cell")
        return image

    def attach_head(self) -> None:
        """There are no classes, and so no head."""

    def blocks_by_depth(self) -> dict[str, nn.Module]:
        return {
            f"{side}.stages.{s}.{b}": block
            for side, half in (("encoder", self.encoder), ("decoder", self.decoder))
            if half is not None
            for s, blocks in enumerate(half.stages)
            for b, block in enumerate(blocks.children())
        }

    def map_shape(self, block: str) -> tuple[int, int] | None:
        side, _, stage, _ = block.split(".")
        if side == "decoder":  # `encode` does not reach it
            return None
        return self.config.widths[int(stage)], 2 ** int(stage)

    @torch.no_grad()
    def init_weights(self) -> None:
        """As DALL-E's code does.

        | what | how |
        |---|---|
        | convolutions | N(0, 1/fan_in) |
        | every bias | 0 |
        | words of a "vq" | N(0, 0.1), of which the direction counts |
        | what turns them | a tenth of the identity |

        Words begin small because optimisers take steps of one size: so they turn soon to where
        images are, and most of them find one.
        """
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                assert module.bias is not None
                nn.init.normal_(module.weight, std=module.weight[0].numel() ** -0.5)
                nn.init.zeros_(module.bias)
        if self.book is not None:
            nn.init.normal_(self.book.table, std=0.1)
            nn.init.eye_(self.book.turn.weight)
            self.book.turn.weight.mul_(0.1)


def stage(width: int, out: int, sides: tuple[int, ...], config: TokenizerConfig) -> nn.Sequential:
    """Blocks of which the first changes the width."""
    before = (width, *[out] * (config.depth - 1))
    return nn.Sequential(*(Block(each, out, sides, config.gain) for each in before))


def same_conv(width: int, out: int, side: int) -> nn.Conv2d:
    return nn.Conv2d(width, out, side, padding=side // 2)


def squeeze_pixels(pixels: Float[Tensor, "B C H W"]) -> Float[Tensor, "B C H W"]:
    """From [0, 1] into the open interval that has logits.

    >>> squeeze_pixels(torch.ones(1, 1, 1, 1))
    tensor([[[[0.9000]]]])
    """
    return (1 - 2 * MARGIN) * pixels + MARGIN


def pixels_of(decoded: Float[Tensor, "B CC H W"]) -> Float[Tensor, "B C H W"]:
    """The likeliest pixels, from 0 to 1, by what a decoder says."""
    middle, _ = decoded.chunk(2, dim=1)
    return ((middle.sigmoid() - MARGIN) / (1 - 2 * MARGIN)).clamp(0, 1)
