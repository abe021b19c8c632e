"""What decides a ViT: the fields of its config, checked, and the sequence that they make."""

from dataclasses import dataclass
from typing import Literal

from vitrail.core.errors import UserError
from vitrail.core.layout import Sides, TokenLayout, height_and_width, simplify_sides
from vitrail.layers.attention import QkvBias
from vitrail.layers.mlp import Activation
from vitrail.layers.position import Positions
from vitrail.models.config import Classifier, Config, Numerics, Runtime, Shape
from vitrail.models.limits import check_computed, check_counts, check_multiple
from vitrail.models.resnet import ResNetConfig


@dataclass(frozen=True, kw_only=True)
class ViTConfig(Config):
    """Everything that decides what a ViT computes, and nothing about training runs or files.

    A sequence is: class token, distillation token, registers, patches. The first
    `prefix_positions` of the prefix tokens have a slot in the learned position table (None: class
    and distillation token do, registers do not).
    """

    dim: Shape[int]
    depth: Shape[int]
    heads: Numerics[int]
    mlp_dim: Shape[int]
    dim_head: Shape[int | None] = None  # None: dim / heads
    # of the image, or of the stem's feature map; (height, width) where patches are no squares
    patch_size: Shape[Sides] = 16
    # "mean": patches; "all": every token
    pool: Numerics[Literal["cls", "mean", "all", "cls+mean"]] = "cls"
    head: Classifier[Literal["linear", "pretrain"]] = "linear"
    head_bias: Classifier[bool] = True
    stem: Shape[ResNetConfig | None] = None
    class_token: Shape[bool] = True
    distilled: Shape[bool] = False
    registers: Shape[int] = 0
    positions: Shape[Positions] = "learned"
    prefix_positions: Shape[int | None] = None
    patch_bias: Shape[bool] = True
    patch_norm: Shape[bool] = False
    embed_norm: Shape[bool] = False  # a LayerNorm before the first block (CLIP)
    # on the sequence or after pooling
    final_norm: Numerics[Literal["tokens", "pooled", "none"]] = "tokens"
    qkv_bias: Shape[QkvBias] = "qkv"
    activation: Numerics[Activation] = "gelu"
    # "pre": norm, branch, add, as the paper has it; "post": branch, add, norm (arXiv:1706.03762)
    norm_placement: Numerics[Literal["pre", "post"]] = "pre"
    layer_scale: Shape[float | None] = None
    norm_eps: Numerics[float] = 1e-6
    dropout: Runtime[float] = 0.0  # after embedding, attention and both linear layers of the MLP
    embed_dropout: Runtime[float | None] = None  # after embedding; None: as `dropout`
    patch_dropout: Runtime[float] = 0.0  # share of the patches that a training step leaves out

    def __post_init__(self) -> None:
        super().__post_init__()
        # one number for a square, however it was given: configs that are equal compare equal
        object.__setattr__(self, "patch_size", simplify_sides(self.patch_size))
        positive = ("dim", "depth", "heads", "dim_head", "mlp_dim", "patch_size")
        check_counts(self, *positive, least=1)
        check_counts(self, "registers", "prefix_positions", least=0)
        check_multiple(self.image_size, self.stride, "patch")
        if self.dim_head is None and self.dim % self.heads:
            raise UserError(
                f"dim must be a multiple of heads, got {self.dim} and {self.heads}: give dim_head"
            )
        if self.patch_dropout and self.positions == "relative":
            raise UserError('patch_dropout must be 0 with positions="relative"')
        if "cls" in self.pool and not self.class_token:
            raise UserError(f'pool="{self.pool}" needs a class token: use pool="mean"')
        if self.distilled and self.pool != "cls":
            raise UserError(f'pool must be "cls" for a distilled model, got "{self.pool}"')
        if self.pool == "cls+mean" and self.final_norm == "pooled":
            raise UserError('pool="cls+mean" needs final_norm="tokens" or "none", got "pooled"')
        if self.slots > self.prefix:
            raise UserError(
                f"prefix_positions is {self.prefix_positions} but there are {self.prefix} "
                "prefix tokens"
            )
        tokens = self.grid[0] * self.grid[1]
        fixed = (tokens + self.slots) * self.dim
        relative = self.depth * tokens**2
        computed = {"sincos1d": fixed, "sincos2d": fixed, "relative": relative}
        check_computed(computed.get(self.positions, 0), f'positions="{self.positions}"')

    @property
    def patch_sides(self) -> tuple[int, int]:
        """Height and width of a patch, of the image or of the stem's feature map."""
        return height_and_width(self.patch_size)

    @property
    def stem_stride(self) -> int:
        return self.stem.stride if self.stem else 1

    @property
    def strides(self) -> tuple[int, int]:
        """Height and width of a patch in pixels."""
        height, width = self.patch_sides
        return height * self.stem_stride, width * self.stem_stride

    @property
    def stride(self) -> Sides:
        """Pixels a side for one patch, or its height and width."""
        return simplify_sides(self.strides)

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches."""
        (height, width), (down, across) = self.image_size, self.strides
        return height // down, width // across

    @property
    def prefix(self) -> int:
        """Tokens before the patches."""
        return self.class_token + self.distilled + self.registers

    @property
    def slots(self) -> int:
        """Prefix tokens that have a place in the position table."""
        if self.positions not in ("learned", "sincos1d"):
            return 0
        if self.prefix_positions is None:
            return self.class_token + self.distilled
        return self.prefix_positions

    @property
    def features(self) -> int:
        return 2 * self.dim if self.pool == "cls+mean" else self.dim

    @property
    def tokens(self) -> int:
        return self.layout.tokens

    @property
    def layout(self) -> TokenLayout:
        return TokenLayout(grid=self.grid, stride=self.stride, prefix=self.prefix)
