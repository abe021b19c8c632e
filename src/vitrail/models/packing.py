"""Packing (NaViT, arXiv:2307.06304): images of different sizes in one sequence of a ViT.

    images ── patches ── prefix, positions ── linear layers of all tokens ── attention per image
    C H W      P C p p        T D                        T D                    b h n d

The patches of all images are one long sequence. Norms, projections and MLPs compute it at once;
attention is computed for the images of one length at a time, so that no image sees another: what a
block-diagonal mask would give, without the mask and without the work that it hides. Each image has
prefix tokens of its own, and the model's positions resized to its grid by the passport's method.
So an image gets what the model, loaded with that `image_size`, gives it alone, to rounding.

Axes: T tokens of all images · P patches of all images · b images of one length · n their tokens
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import TypeGuard

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.core.errors import UserError
from vitrail.core.layout import format_sides
from vitrail.core.native_size import NativeSize
from vitrail.core.ranges import check_count
from vitrail.layers.attention import SelfAttention
from vitrail.layers.drop import DropPath
from vitrail.layers.position import (
    LearnedPositions,
    LearnedPositions2d,
    cross_positions,
    sincos_1d,
    sincos_2d,
)
from vitrail.models.position_resize import Grid, resize_positions
from vitrail.models.vit import Block, PostNormBlock, ViT

# a branch of a block: tokens (T, D) of images with so many tokens each
Branch = Callable[[Tensor, Sequence[int]], Tensor]


def check_packable(model: nn.Module) -> None:
    """Refuse, with the reason, a model that cannot read images of different sizes at once."""
    if (why := why_not_packable(model)) is not None:
        raise UserError(
            f"images of different sizes need a ViT, DeiT or DINOv2 model, got {why}: leave out "
            "native_resolution=True, or use another model"
        )


def why_not_packable(model: nn.Module) -> str | None:
    if not is_vit(model):
        what = type(model).__name__
        if isinstance(model, ViT):
            return f"{what}, a ViT with other blocks"
        return f"{what}, which computes maps, windows or relative biases of one grid"
    if model.config.stem is not None:
        return "a hybrid, whose stem normalises over the whole image"
    if model.config.positions == "relative":
        return "one with relative positions, which belong to one grid"
    return None


def is_vit(model: nn.Module) -> TypeGuard[ViT]:
    """Whether it is a ViT as it is in `models/vit.py`: a subclass may compute something else."""
    known = (Block, PostNormBlock)
    return type(model) is ViT and all(type(block) in known for block in model.blocks)


def native_size_of(model: nn.Module, max_tokens: int | None = None) -> NativeSize:
    """How a model reads images at their own size: at most as many patches as its own grid has, or
    `max_tokens`.

    >>> native_size_of(create("vit_ti_16", depth=1)).size(600, 800)
    (192, 256)
    """
    check_packable(model)
    assert is_vit(model)
    rows, columns = model.config.grid
    most = rows * columns if max_tokens is None else max_tokens
    check_count("max_tokens", most, at_least=1)
    return NativeSize(model.config.stride, most)


def packed_logits(
    model: ViT, images: Sequence[Float[Tensor, "C _ _"]], *, prune: bool = False
) -> Float[Tensor, "B K"]:
    """model(image) of every image, each at its own size, in their order. `prune` leaves out of the
    last block the tokens that the head does not read.

    >>> model = create("vit_ti_16", depth=1, num_classes=10)
    >>> packed_logits(model, [torch.zeros(3, 224, 160), torch.zeros(3, 64, 96)]).shape
    torch.Size([2, 10])
    """
    tokens = packed_tokens(model, images, queries=read_by_head(model) if prune else None)
    if model.config.pool == "cls":
        return model.logits_of(prefix_tokens(model, tokens))
    return model.head(pooled(model, tokens))


def packed_both_heads(
    model: ViT, images: Sequence[Float[Tensor, "C _ _"]]
) -> tuple[Float[Tensor, "B K"], Float[Tensor, "B K"]]:
    """model.both_heads(image) of every image."""
    return model.both_logits_of(prefix_tokens(model, packed_tokens(model, images)))


def packed_features(
    model: ViT, images: Sequence[Float[Tensor, "C _ _"]], *, prune: bool = False
) -> Float[Tensor, "B D"]:
    """model.features(image) of every image."""
    tokens = packed_tokens(model, images, queries=read_by_head(model) if prune else None)
    if model.config.pool == "cls":
        return model.features_of(prefix_tokens(model, tokens))
    return pooled(model, tokens)


def packed_tokens(
    model: ViT, images: Sequence[Float[Tensor, "C _ _"]], *, queries: int | None = None
) -> list[Float[Tensor, "_ D"]]:
    """model.encode(image, queries) of every image."""
    grids = [grid_of(model, image) for image in images]
    # images of one length stand side by side: their attention is then a view of the sequence
    order = sorted(range(len(images)), key=lambda i: grids[i][0] * grids[i][1])
    x, lengths = embed(model, [images[i] for i in order], [grids[i] for i in order])
    x = model.embed_norm(x)
    *blocks, last = model.blocks
    for block in blocks:
        x = forward_block(block, x, lengths)
    if queries is None:
        x = forward_block(last, x, lengths)
    else:
        x = torch.cat([last(run, queries).flatten(0, 1) for run in runs_of(x, lengths)])
        lengths = [queries] * len(lengths)
    x = model.norm(x) if model.config.final_norm == "tokens" else x
    tokens = dict(zip(order, x.split(lengths), strict=True))
    return [tokens[i] for i in range(len(images))]


def grid_of(model: ViT, image: Float[Tensor, "C H W"]) -> Grid:
    """Rows and columns of patches."""
    config = model.config
    if image.ndim != 3 or image.shape[0] != config.channels or 0 in image.shape:
        raise UserError(
            f"an image must be ({config.channels}, height, width), got {tuple(image.shape)}"
        )
    (height, width), (down, across) = image.shape[1:], config.strides
    if height % down or width % across:
        raise UserError(
            f"height and width must be multiples of the patch, {format_sides(config.stride)}, got "
            f"{height}x{width}: resize the image"
        )
    return height // down, width // across


def embed(
    model: ViT, images: Sequence[Float[Tensor, "C _ _"]], grids: Sequence[Grid]
) -> tuple[Float[Tensor, "T D"], list[int]]:
    """The tokens of all images one after another, and how many each has."""
    high, wide = model.config.patch_sides
    cut = [rearrange(image, "c (i p) (j q) -> (i j) c p q", p=high, q=wide) for image in images]
    patches = model.patches(torch.cat(cut)).squeeze(1)  # each patch an image of one patch
    prefix = [
        token[0] for token in (model.cls, model.distillation, model.registers) if token is not None
    ]
    places = {grid: positions_for(model, grid) for grid in dict.fromkeys(grids)}
    sequences = list[Tensor]()
    for grid, own in zip(grids, patches.split([len(one) for one in cut]), strict=True):
        tokens, place = torch.cat([*prefix, own]), places[grid]
        tokens = tokens if place is None else tokens + place
        sequences.append(model.patch_dropout(model.dropout(tokens[None]))[0])
    return torch.cat(sequences), [len(one) for one in sequences]


def positions_for(model: ViT, grid: Grid) -> Float[Tensor, "N D"] | None:
    """The model's positions on another grid, as loading it with that image size has them; gradients
    flow into its table."""
    config, positions, method = model.config, model.positions, model.passport.resize
    if positions is None:
        return None
    if isinstance(positions, LearnedPositions):
        table = resize_positions(
            positions.table, config.grid, grid, prefix=config.slots, method=method
        )
    elif isinstance(positions, LearnedPositions2d):
        rows, columns = (
            resize_positions(line[None], (len(line), 1), (count, 1), prefix=0, method=method)[0]
            for line, count in zip((positions.rows, positions.columns), grid, strict=True)
        )
        table = cross_positions(rows, columns)
    elif config.positions == "sincos1d":
        count = config.slots + grid[0] * grid[1]
        table = sincos_1d(count, config.dim)[None].to(positions.table)
    else:
        table = sincos_2d(grid, config.dim)[None].to(positions.table)
    return model.place(table)[0]


def forward_block(
    block: nn.Module, x: Float[Tensor, "T D"], lengths: Sequence[int]
) -> Float[Tensor, "T D"]:
    """`Block.forward` for images of so many tokens each."""
    assert isinstance(block, Block)
    post = isinstance(block, PostNormBlock)

    def attention_branch(x: Tensor, lengths: Sequence[int]) -> Tensor:
        x = x if post else block.norm1(x)
        return block.scale1(block.dropout(attend(block.attention, x, lengths)))

    def mlp_branch(x: Tensor, _: Sequence[int]) -> Tensor:
        return block.mlp_branch(x)

    x = add_branch(block.drop_path, x, lengths, attention_branch)
    x = add_branch(block.drop_path, block.norm1(x) if post else x, lengths, mlp_branch)
    return block.norm2(x) if post else x


def add_branch(
    drop_path: DropPath, x: Float[Tensor, "T D"], lengths: Sequence[int], branch: Branch
) -> Float[Tensor, "T D"]:
    """`DropPath.forward` with images for samples: the branch is computed for those that keep it."""
    if not drop_path.training or drop_path.rate == 0:
        return x + branch(x, lengths)
    keep = 1 - drop_path.rate
    kept = torch.rand(len(lengths), device="cpu") < keep
    tokens = kept.repeat_interleave(torch.tensor(lengths)).nonzero().squeeze(1).to(x.device)
    change = branch(
        x.index_select(0, tokens),
        [length for length, one in zip(lengths, kept.tolist(), strict=True) if one],
    )
    return x.index_add(0, tokens, change.to(x.dtype), alpha=1 / keep)


def attend(
    attention: SelfAttention, x: Float[Tensor, "T D"], lengths: Sequence[int]
) -> Float[Tensor, "T D"]:
    """`SelfAttention.forward`, within each image: projections of all tokens at once, attention of
    images of one length at once."""
    mixed = [
        rearrange(attention.attend(q, k, v), "b h n d -> (b n) (h d)")
        for q, k, v in (
            rearrange(run, "b n (three h d) -> three b h n d", three=3, h=attention.heads)
            for run in runs_of(attention.project_all(x), lengths)
        )
    ]
    return attention.out(torch.cat(mixed))


def runs_of(x: Float[Tensor, "T D"], lengths: Sequence[int]) -> Iterator[Float[Tensor, "b n D"]]:
    """The tokens of neighbouring images of one length, as views; one without images where there
    are none at all."""
    start = 0
    for length, images in groupby(lengths):
        count = len(list(images))
        yield x[start : start + count * length].unflatten(0, (count, length))
        start += count * length
    if not lengths:
        yield x.unflatten(0, (0, 1))


def read_by_head(model: ViT) -> int | None:
    """The first tokens of an image that its head reads, where these are not all (None), and the
    last block can compute them alone."""
    last = model.blocks[-1]
    assert isinstance(last, Block)
    reads_few = model.config.pool == "cls" and last.attention.can_split_queries
    return model.config.prefix if reads_few else None


def prefix_tokens(model: ViT, tokens: Sequence[Float[Tensor, "_ D"]]) -> Float[Tensor, "B P D"]:
    return torch.stack([one[: model.config.prefix] for one in tokens])


def pooled(model: ViT, tokens: Sequence[Float[Tensor, "_ D"]]) -> Float[Tensor, "B D"]:
    return torch.cat([model.features_of(one[None]) for one in tokens])
