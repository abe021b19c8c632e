"""Token merging (ToMe, arXiv:2210.09461): similar patches become one token, block by block.

Between attention and MLP of a block the patches are divided into two alternating sets; each of the
first set finds the most similar of the second by its key, and the `r` most similar pairs are merged
into their size-weighted mean. Attention is proportional: a merged token counts as often as its
parts would have. Class, distillation and register tokens are never merged. No weight changes and
nothing is trained; with r = 0 the model is identical to the bit.
"""

from collections.abc import Sequence
from numbers import Integral
from typing import Any, NamedTuple, TypeVar

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.core.errors import UserError
from vitrail.core.ranges import check_counts
from vitrail.inference.rewrites.sharing import share_weights, with_children
from vitrail.layers.attention import SelfAttention
from vitrail.layers.merged import MergedAttend, Unmerge, log_sizes, mean_bias
from vitrail.models import beit, vit
from vitrail.models.model import Model

M = TypeVar("M", bound=nn.Module)


class Tokens(NamedTuple):
    """Tokens on their way through the blocks: how many patches each one stands for, and which of
    them every original token is a part of (None: nothing was merged yet)."""

    values: Float[Tensor, "B M D"]
    sizes: Float[Tensor, "B M"] | None = None
    group: Int[Tensor, "B N"] | None = None


class MergingAttention(SelfAttention):
    """Self-attention that also gives the mean of its heads' keys, by which tokens are compared."""

    def forward(  # type: ignore[override]
        self,
        x: Float[Tensor, "B M D"],
        bias: Float[Tensor, "#B #h #M M"] | None = None,
        queries: int | None = None,
        group: Int[Tensor, "B N"] | None = None,
    ) -> tuple[Float[Tensor, "B m D"], Float[Tensor, "B M d"]]:
        q, k, v = (
            rearrange(part, "B N (h d) -> B h N d", h=self.heads)
            for part in self.project(x, queries)
        )
        if bias is not None and queries is not None:
            bias = bias[:, :, :queries]
        mixed = self.attend(q, k, v, bias, group=group)
        return self.out(rearrange(mixed, "B h N d -> B N (h d)")), k.mean(dim=1)


class MergingViTBlock(vit.Block):
    """A ViT's block that merges `merged` pairs of patches before its MLP."""

    merged: int
    prefix: int

    def forward(  # type: ignore[override]
        self, tokens: Tokens, queries: int | None = None
    ) -> Tokens:
        return forward_block(self, tokens, attention_bias(tokens), queries)


class MergingPostNormBlock(vit.PostNormBlock):
    """The same for a ViT's block that norms after it adds."""

    merged: int
    prefix: int

    def forward(  # type: ignore[override]
        self, tokens: Tokens, queries: int | None = None
    ) -> Tokens:
        return forward_block(self, tokens, attention_bias(tokens), queries)


class MergingBeitBlock(beit.Block):
    """The same for BEiT, whose relative bias follows the merged tokens."""

    merged: int
    prefix: int

    def forward(  # type: ignore[override]
        self, tokens: Tokens, shared: Float[Tensor, "1 h N N"] | None = None
    ) -> Tokens:
        bias = shared if self.relative is None else self.relative()
        return forward_block(self, tokens, attention_bias(tokens, bias))


class MergedViT(vit.ViT):
    """A ViT whose blocks merge tokens; `encode` gives every token again, each with the value of the
    merged token that it is a part of. So pooling over patches weighs merged ones by their size.
    `read` are the first tokens that the head needs, where it needs no others (None: all)."""

    read: int | None = None

    def forward_blocks(
        self, x: Float[Tensor, "B N D"], queries: int | None = None
    ) -> Float[Tensor, "B n D"]:
        queries = self.read if queries is None else queries
        tokens = Tokens(self.embed_norm(x))
        *blocks, last = self.blocks
        for block in blocks:
            tokens = block(tokens)
        tokens = last(tokens) if queries is None else last(tokens, queries)
        x = tokens.values if queries is not None else unmerge(self, tokens)
        return self.norm(x) if self.config.final_norm == "tokens" else x

    def to_map(self, output: Any) -> Float[Tensor, "B D rows columns"]:
        return super().to_map(unmerge(self, output))


class MergedBeit(beit.Beit):
    """The same for BEiT."""

    def forward_blocks(self, x: Float[Tensor, "B N D"]) -> Float[Tensor, "B N D"]:
        shared = None if self.relative is None else self.relative()
        tokens = Tokens(x)
        for block in self.blocks:
            tokens = block(tokens, shared)
        x = unmerge(self, tokens)
        return x if self.config.pool == "mean" else self.norm(x)

    def to_map(self, output: Any) -> Float[Tensor, "B D rows columns"]:
        return super().to_map(unmerge(self, output))


MergingBlock = MergingViTBlock | MergingPostNormBlock | MergingBeitBlock


def merge_tokens(model: Model, r: int | Sequence[int]) -> Model:
    """The model with `r` pairs of patches merged in every block, or so many in each; the model
    itself stays as it is, and weights are shared.

    A block merges no more than half of the patches it has left. For ViT, its hybrids, DeiT and
    BEiT. Explanations of the merged model are maps of the original patches, and so are the tokens
    of `encode`. After weights change in place the merged model has them too.

    >>> merged = merge_tokens(create("vit_ti_16", num_classes=10).eval(), r=16)
    >>> merged(torch.zeros(1, 3, 224, 224)).shape
    torch.Size([1, 10])
    """
    check_mergeable(model)
    plan = merge_plan(model, r)
    shared = share_weights(model)
    blocks = shared.get_submodule("blocks")
    merging = {
        name: merging_block(block, merged, model.config.layout.prefix)
        for (name, block), merged in zip(blocks.named_children(), plan, strict=True)
    }
    kind = MergedBeit if isinstance(model, beit.Beit) else MergedViT
    children = {"blocks": with_children(blocks, merging), "unmerge": Unmerge()}
    merged = recast(with_children(shared, children), kind)
    merged.merged_tokens = tuple(plan) if any(plan) else ()
    return merged


def check_mergeable(model: Model) -> None:
    blocks = {"ViT": (vit.Block, vit.PostNormBlock), "Beit": (beit.Block,)}
    if model.merged_tokens:
        raise UserError(
            "this model merges tokens already: merge those of the model that it was made of"
        )
    if type(model) not in (vit.ViT, beit.Beit):
        raise UserError(
            f"token merging needs a ViT, DeiT, hybrid or BEiT, got {type(model).__name__}: other "
            "families have no sequence of tokens to shorten"
        )
    if model.training:
        raise UserError("token merging needs a model in evaluation mode: call model.eval() first")
    if getattr(model.config, "positions", None) == "relative":
        raise UserError(
            'token merging does not support positions="relative": merged tokens have '
            "no place in reading order"
        )
    known = blocks[type(model).__name__]
    for block in model.get_submodule("blocks").children():
        if type(block) not in known or type(block.attention) is not SelfAttention:
            raise UserError(
                f"token merging needs blocks as this family has them, got {type(block).__name__}"
            )


def merge_plan(model: Model, r: int | Sequence[int]) -> list[int]:
    """Pairs that each block merges, at most half of the patches that it has left.

    >>> merge_plan(create("vit_ti_16", depth=3), 90)
    [90, 53, 26]
    """
    depth, patches = model.config.depth, model.config.grid[0] * model.config.grid[1]
    wanted = [int(one) for one in check_counts("r", r)]
    wanted = wanted * depth if isinstance(r, Integral) else wanted
    if len(wanted) != depth:
        raise UserError(f"r must be one number or one for each of {depth} blocks, got {wanted}")
    plan = []
    for one in wanted:
        plan.append(min(one, patches // 2))
        patches -= plan[-1]
    return plan


def merging_block(block: nn.Module, merged: int, prefix: int) -> nn.Module:
    """A block of its family's kind that merges."""
    attention = block.get_submodule("attention")
    assert isinstance(attention, SelfAttention)
    attention = with_children(attention, {"attend": MergedAttend(attention.attend.layout)})
    children = {"attention": recast(attention, MergingAttention)}
    copy = with_children(block, children)
    kinds: dict[type[nn.Module], type[MergingBlock]] = {
        vit.Block: MergingViTBlock,
        vit.PostNormBlock: MergingPostNormBlock,
        beit.Block: MergingBeitBlock,
    }
    merging = recast(copy, kinds[type(block)])
    merging.merged, merging.prefix = merged, prefix
    return merging


def recast(module: nn.Module, kind: type[M]) -> M:
    """A module, of which nobody else holds a reference, as one of another class over the same
    submodules."""
    assert issubclass(kind, type(module))
    module.__class__ = kind
    assert isinstance(module, kind)
    return module


def attention_bias(
    tokens: Tokens, bias: Float[Tensor, "1 h N N"] | None = None
) -> Float[Tensor, "#B #h #M M"] | None:
    """What is added to the logits of attention: a relative bias where there is one, and the
    logarithm of sizes once there are any."""
    if tokens.sizes is None or tokens.group is None:
        return bias
    logarithms = log_sizes(tokens.sizes)
    if bias is None:
        return logarithms
    return mean_bias(bias, tokens.group, tokens.sizes.shape[1]) + logarithms


def forward_block(
    block: MergingBlock,
    tokens: Tokens,
    bias: Float[Tensor, "#B #h #M M"] | None,
    queries: int | None = None,
) -> Tokens:
    """A block with its merge between attention and MLP; none where few tokens are asked for."""
    x, post = tokens.values, isinstance(block, MergingPostNormBlock)
    mixed, keys = block.attention(x if post else block.norm1(x), bias, queries, tokens.group)
    x = (x if queries is None else x[:, :queries]) + block.scale1(block.dropout(mixed))
    x = block.norm1(x) if post else x
    tokens = tokens._replace(values=x)
    if block.merged and queries is None:
        tokens = merge(tokens, keys, block.merged, block.prefix)
    x = tokens.values + block.mlp_branch(tokens.values)
    return tokens._replace(values=block.norm2(x) if post else x)


def merge(tokens: Tokens, keys: Float[Tensor, "B M d"], r: int, prefix: int) -> Tokens:
    """Without `r` of the patches, which are merged into those most similar to them. The order is
    prefix tokens, patches of the first set that remain, patches of the second set."""
    x = tokens.values
    batch, count, _ = x.shape
    sizes = x.new_ones(batch, count) if tokens.sizes is None else tokens.sizes
    # the sets alternate over the whole sequence, prefix tokens counted, as the authors' do
    first, second = alternating(keys, prefix)
    similarity = F.normalize(first, dim=-1) @ F.normalize(second, dim=-1).mT
    best, partner = similarity.max(dim=-1)
    order = best.argsort(dim=-1, descending=True)
    leaving, staying = order[:, :r], order[:, r:].sort(dim=-1).values
    into = partner.gather(1, leaving)

    def reduce(values: Float[Tensor, "B M C"]) -> Float[Tensor, "B m C"]:
        first, second = alternating(values, prefix)
        gone = select(first, leaving)
        index = into[:, :, None].expand_as(gone)
        merged = second.scatter_add(1, index, gone)
        return torch.cat([values[:, :prefix], select(first, staying), merged], dim=1)

    new_sizes = reduce(sizes[:, :, None])
    place = new_places(leaving, staying, into, count=count, prefix=prefix)
    group = place if tokens.group is None else place.gather(1, tokens.group)
    return Tokens(reduce(x * sizes[:, :, None]) / new_sizes, new_sizes[:, :, 0], group)


def alternating(
    x: Float[Tensor, "B M C"], prefix: int
) -> tuple[Float[Tensor, "B a C"], Float[Tensor, "B b C"]]:
    """The patches at even and at odd places of the sequence."""
    even = prefix + prefix % 2
    odd = prefix + 1 - prefix % 2
    return x[:, even::2], x[:, odd::2]


def select(x: Float[Tensor, "B M C"], index: Int[Tensor, "B m"]) -> Float[Tensor, "B m C"]:
    return x.gather(1, index[:, :, None].expand(-1, -1, x.shape[2]))


def new_places(
    leaving: Int[Tensor, "B r"],
    staying: Int[Tensor, "B s"],
    into: Int[Tensor, "B r"],
    *,
    count: int,
    prefix: int,
) -> Int[Tensor, "B M"]:
    """Where each of `count` tokens is after a merge."""
    batch, stay = staying.shape
    every = torch.arange(count, device=staying.device).expand(batch, -1)
    first, second = (part[:, :, 0] for part in alternating(every[:, :, None], prefix))
    after = prefix + stay  # the place of the second set's first token
    of_first = torch.empty_like(first).scatter(1, leaving, into + after)
    of_first = of_first.scatter(1, staying, every[:, prefix:after])
    of_second = every[:, after : after + second.shape[1]]
    places = every.scatter(1, first, of_first)
    return places.scatter(1, second, of_second)


def unmerge(model: nn.Module, tokens: Tokens) -> Float[Tensor, "B N D"]:
    """Every token again, by a module, so that whoever observes the model sees them."""
    every: Tensor = model.get_submodule("unmerge")(tokens.values, tokens.group)
    return every
