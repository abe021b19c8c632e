"""The layers of a trace by what they do in a ViT: projection, class token, blocks, head."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from vitrail.core.errors import UserError
from vitrail.explanation.check.trace import Event, Trace


@dataclass(frozen=True)
class BlockLayers:
    """`norms_before`: between the last block and this one's projections; `norms_between`: between
    attention and MLP. `projections` in the order in which they ran: one for q, k and v together,
    or three, or three for each head. A scale is a LayerScale."""

    norms_before: tuple[Event, ...]
    projections: tuple[Event, ...]
    attention: tuple[Event, ...]
    out: Event | None
    out_scale: Event | None
    norms_between: tuple[Event, ...]
    hidden: Event
    mlp_out: Event
    mlp_scale: Event | None

    @property
    def products(self) -> int:
        """How many attentions there are: one, or one for each head."""
        whole = sum(event.kind == "fused" for event in self.attention)
        return whole or sum(event.kind == "product" for event in self.attention) // 2

    @property
    def inner(self) -> int:
        """Width of all heads together."""
        return sum(event.weight.shape[0] for event in self.projections) // 3


@dataclass(frozen=True)
class ViTLayers:
    """`patch_norms`: before the projection; `token_norms`: after it, before anything is joined or
    added; `embedding`: joins and additions of parameters before the first block."""

    batch: int
    patch_norms: tuple[Event, ...]
    projection: Event
    token_norms: tuple[Event, ...]
    embedding: tuple[Event, ...]
    blocks: tuple[BlockLayers, ...]
    norms_after: tuple[Event, ...]
    head: tuple[Event, ...]
    head_activation: Event | None

    @property
    def dim(self) -> int:
        return self.blocks[0].hidden.weight.shape[1]

    @property
    def dim_head(self) -> int:
        """What the scores of a head are summed over."""
        return self.blocks[0].attention[0].data[0].shape[-1]

    @property
    def heads(self) -> int:
        return self.blocks[0].inner // self.dim_head

    @property
    def tokens(self) -> int:
        """Of the sequence in the blocks."""
        return self.blocks[0].hidden.data[0].numel() // self.dim // self.batch

    @property
    def join(self) -> Event | None:
        return next((one for one in self.embedding if one.kind == "join"), None)


@dataclass
class Places:
    """Places of a block's layers and attentions in the trace."""

    projections: list[int]
    groups: list[tuple[int, int]]
    rest: list[int] = field(default_factory=list)


def find_layers(trace: Trace, batch: int) -> ViTLayers:
    """What the layers of a trace are, or one sentence why they are not those of a ViT."""
    events = trace.events
    layers = [place for place, event in enumerate(events) if event.kind in ("linear", "conv")]
    groups = attention_groups(events)
    check_is_vit(events, layers, groups, batch)
    blocks = split_blocks(events, layers, groups)
    first, last = blocks[0].projections[0], blocks[-1].rest[-1]
    dim = events[first].weight.shape[1]
    embedding = [place for place in range(layers[0], first) if embeds(events[place], dim)]
    start = max([layers[0], *embedding])
    before = [start, *(block.rest[-1] for block in blocks)]
    head = tuple(events[place] for place in layers if place > last)
    if not head:
        raise UserError(
            "the module has no layer after its blocks: give a model with the head that it "
            "classifies with"
        )
    if any(one.weight.shape[0] != two.weight.shape[1] for one, two in pairwise(head)):
        raise UserError(
            f"check is for ViTs with one head, this module has {len(head)} (nearest family: deit)"
        )
    return ViTLayers(
        batch=batch,
        patch_norms=of_kind(events[: layers[0]], "norm"),
        projection=events[layers[0]],
        token_norms=of_kind(events[layers[0] : embedding[0] if embedding else layers[0]], "norm"),
        embedding=tuple(events[place] for place in embedding),
        blocks=tuple(read_block(events, *pair) for pair in zip(blocks, before, strict=False)),
        norms_after=of_kind(events[last:], "norm"),
        head=head,
        head_activation=next(iter(of_kind(events[last + 1 :], "activation")), None),
    )


def embeds(event: Event, dim: int) -> bool:
    """Whether it joins a token, or adds a row to each: a bias has one row."""
    rows = 0 if event.constant is None else event.constant.numel() // dim
    fits = event.output.shape[-1] == dim
    return fits and ((event.kind == "join" and rows > 0) or (event.kind == "add" and rows > 1))


def attention_groups(events: Sequence[Event]) -> list[tuple[int, int]]:
    """First and last place of each attention: scores, then the weighted sum; or both in one."""
    groups: list[tuple[int, int]] = []
    first: int | None = None
    for place, event in enumerate(events):
        if event.kind == "fused":
            groups.append((place, place))
        elif event.kind == "product":
            if first is not None:
                groups.append((first, place))
            first = place if first is None else None
    return groups


def split_blocks(
    events: Sequence[Event], layers: Sequence[int], groups: Sequence[tuple[int, int]]
) -> list[Places]:
    """The blocks. Heads that run one after the other have nothing but their projections between
    them; blocks also have the rest of the last one there: output projection and MLP."""
    count = sum(layers[0] < place < groups[0][0] for place in layers)
    if count not in (1, 3):
        raise UserError(
            "attention must have one projection for q, k and v, or three, got "
            f"{count} layers before the first scores"
        )
    blocks = [Places(list(layers[1 : 1 + count]), [groups[0]])]
    for (_, end), group in pairwise(groups):
        between = [place for place in layers if end < place < group[0]]
        if len(between) == count:
            blocks[-1].projections += between
            blocks[-1].groups.append(group)
        else:
            blocks[-1].rest = between[:-count]
            blocks.append(Places(between[-count:], [group]))
    tail = [place for place in layers if place > groups[-1][1]]
    blocks[-1].rest = tail[: rest_of(events, blocks, tail)]
    for number, block in enumerate(blocks):
        check_block(events, block, number)
    return blocks


def rest_of(events: Sequence[Event], blocks: Sequence[Places], tail: Sequence[int]) -> int:
    """How many layers a block has after attention: 3, or 2 without an output projection."""
    if len(blocks) > 1:
        return len(blocks[0].rest)
    dim = events[blocks[0].projections[0]].weight.shape[1]
    is_out = len(tail) > 3 and events[tail[0]].weight.shape[0] == dim
    return 3 if is_out and events[tail[2]].weight.shape[0] == dim else 2


def check_block(events: Sequence[Event], block: Places, number: int) -> None:
    dim = events[block.projections[0]].weight.shape[1]
    shapes = [tuple(events[place].weight.shape) for place in block.rest]
    if len(shapes) not in (2, 3) or shapes[-1][0] != dim or shapes[-2] != shapes[-1][::-1]:
        raise UserError(
            f"block {number} must be attention, an output projection and an MLP of two layers, got "
            f"layers of shapes {shapes} after its attention"
        )


def read_block(events: Sequence[Event], block: Places, before: int) -> BlockLayers:
    *out, hidden, mlp_out = block.rest
    last = block.groups[-1][1]
    dim = events[hidden].weight.shape[1]
    attention = (event for low, high in block.groups for event in events[low : high + 1])
    end = next((p for p in range(mlp_out + 1, len(events)) if ends_branch(events[p])), len(events))
    return BlockLayers(
        norms_before=of_kind(events[before : block.projections[0]], "norm"),
        projections=tuple(events[place] for place in block.projections),
        attention=tuple(one for one in attention if one.kind in ("product", "fused", "softmax")),
        out=events[out[0]] if out else None,
        out_scale=layer_scale(events[last:hidden], dim),
        norms_between=of_kind(events[last:hidden], "norm"),
        hidden=events[hidden],
        mlp_out=events[mlp_out],
        mlp_scale=layer_scale(events[mlp_out:end], dim),
    )


def ends_branch(event: Event) -> bool:
    return event.kind in ("norm", "linear", "product", "fused")


def layer_scale(events: Sequence[Event], dim: int) -> Event | None:
    """A product with a parameter of one number for each channel."""
    scales = (event for event in of_kind(events, "scale") if event.names)
    return next((one for one in scales if one.weight.numel() == dim), None)


def of_kind(events: Sequence[Event], kind: str) -> tuple[Event, ...]:
    return tuple(event for event in events if event.kind == kind)


def check_is_vit(
    events: Sequence[Event], layers: Sequence[int], groups: Sequence[tuple[int, int]], batch: int
) -> None:
    """Refuse what is no plain ViT, with the family that is nearest to it."""
    convolutions = sum(event.kind == "conv" for event in events)
    if not groups and convolutions > 1:
        raise UserError(
            f"check is for ViTs: this module has {convolutions} convolutions and no attention, "
            "which is a CNN (nearest family: resnet)"
        )
    if not groups:
        raise UserError(
            "check is for ViTs: this module has no attention (no product of queries and keys)"
        )
    if convolutions > 1:
        raise UserError(
            f"check is for ViTs: this module has {convolutions} convolutions beside attention "
            "(nearest families: coatnet, mobilevit, or a hybrid such as vit_r50_b_16)"
        )
    if not layers or layers[0] > groups[0][0] or len(layers) < 2:
        raise UserError("check is for ViTs: no layer makes tokens of patches before attention")
    first = events[layers[1]]
    tokens = first.output.numel() // first.weight.shape[0] // batch
    if events[groups[0][0]].data[0].shape[-2] not in (tokens, batch):
        raise UserError(
            f"check is for ViTs: of {tokens} tokens only {events[groups[0][0]].data[0].shape[-2]} "
            "attend to each other (nearest family: swin)"
        )
    inside = (event for low, high in groups for event in events[low : high + 1])
    if any(event.names for event in inside if event.kind in ("add", "fused")):
        raise UserError(
            "check is for ViTs: attention adds learned numbers to its scores (nearest family: beit)"
        )
