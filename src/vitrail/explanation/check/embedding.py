"""How a traced module makes its tokens: patches, projection, class token and positions."""

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from vitrail.explanation.check.layers import ViTLayers
from vitrail.explanation.check.reference import Linear, Norm, cut_patches, order_tokens
from vitrail.explanation.check.trace import Event
from vitrail.explanation.check.values import same


@dataclass
class Embedding:
    """What was found: fields of `Weights` and `Choices`, the values of the steps, the lines that
    they come from, and steps that nothing known computes."""

    weights: dict[str, Any] = field(default_factory=dict)
    choices: dict[str, Any] = field(default_factory=dict)
    steps: dict[str, Tensor] = field(default_factory=dict)
    lines: dict[str, int | None] = field(default_factory=dict)
    unknown: list[str] = field(default_factory=list)
    given: dict[str, Tensor] = field(default_factory=dict)  # as in `Weights`

    def set_step(self, name: str, value: Tensor, event: Event) -> None:
        self.steps[name], self.lines[name] = value, event.line


def read_embedding(
    layers: ViTLayers, images: Tensor, parameters: Mapping[str, Tensor]
) -> Embedding:
    found = Embedding()
    tokens = read_projection(layers, images, found)
    tokens = read_token_order(layers, tokens, images, found)
    read_class_token(layers, tokens, found)
    read_positions(layers, parameters, found)
    return found


def read_projection(layers: ViTLayers, images: Tensor, found: Embedding) -> Tensor:
    """The tokens of the projection row by row, as a reference would have them."""
    event = layers.projection
    batch = len(images)
    weight = event.weight
    dim = weight.shape[0]
    if event.kind == "conv":
        tokens = event.output.flatten(2).mT
        patch, pixels = tuple(weight.shape[2:]), "cpq"
        if event.stride != patch or event.output.numel() != batch * dim * count(images, patch):
            found.given["projection"] = tokens  # patches that overlap
        else:
            read_conv_patches(event, images, patch, found)
    else:
        tokens = event.output.reshape(batch, -1, dim)
        patch = patch_of(weight.shape[1], tokens.shape[1], images)
        read = layers.patch_norms[0] if layers.patch_norms else event
        theirs = read.data[0].reshape(batch, -1, weight.shape[1])
        pixels = read_pixels(theirs, images, patch, found)
        found.set_step("patches", theirs, event)
    found.weights |= {
        "patch": patch,
        "pixels": pixels,
        "projection": Linear(weight.flatten(1), event.bias),
    }
    if layers.token_norms:
        tokens = layers.token_norms[-1].output.reshape(tokens.shape)
    found.weights["patch_norms"] = tuple(map(as_norm, layers.patch_norms))
    found.weights["token_norms"] = tuple(map(as_norm, layers.token_norms))
    found.set_step("projection", tokens, event)
    return tokens


def read_conv_patches(
    event: Event, images: Tensor, patch: tuple[int, ...], found: Embedding
) -> None:
    """The patches that a convolution reads, where its image can be cut into them."""
    read = event.data[0]
    if read.shape != images.shape or any(images.shape[2 + i] % patch[i] for i in range(2)):
        return
    patches = cut_patches(read, (patch[0], patch[1]), "cpq")
    found.set_step("patches", patches, event)
    if not same(read, images):
        found.unknown.append("patches")


def as_norm(event: Event) -> Norm:
    weight = None if event.constant is None else event.constant.flatten()
    return Norm(weight, event.bias, 1e-5 if event.eps is None else event.eps, event.formula)


def count(images: Tensor, patch: tuple[int, ...]) -> int:
    return (images.shape[-2] // patch[0]) * (images.shape[-1] // patch[1])


def patch_of(size: int, tokens: int, images: Tensor) -> tuple[int, int]:
    """Rows and columns of a patch: a square, or what the number of tokens leaves."""
    side = math.isqrt(size // images.shape[1])
    if side and count(images, (side, side)) == tokens and side * side * images.shape[1] == size:
        return side, side
    pixels = size // images.shape[1]
    pairs = [(p, pixels // p) for p in range(1, pixels + 1) if pixels % p == 0]
    fitting = (pair for pair in pairs if count(images, pair) == tokens)
    return next(fitting, (max(side, 1), max(side, 1)))


def read_pixels(theirs: Tensor, images: Tensor, patch: tuple[int, int], found: Embedding) -> str:
    """The order of axes within a patch that they have; the choices say where it is wrong."""
    grid = (images.shape[-2] // patch[0], images.shape[-1] // patch[1])
    for order in ("rows", "columns"):
        for axes in itertools.permutations("cpq"):
            patches = cut_patches(images, patch, "".join(axes))
            if same(theirs, order_tokens(patches, grid, order)):
                found.choices["token_order"] = order
                return "".join(axes)
    if same(theirs, cut_patches(images, patch, "cpq", "unswapped")):
        found.choices["patch_order"] = "unswapped"
    else:
        found.unknown.append("patches")
    return "cpq"


def read_token_order(layers: ViTLayers, tokens: Tensor, images: Tensor, found: Embedding) -> Tensor:
    """The tokens as they enter the sequence."""
    if layers.projection.kind != "conv" or not layers.embedding:
        return tokens
    theirs = layers.embedding[0].data[0]
    if theirs.shape[:-1] == (len(tokens), tokens.shape[1] + 1):  # with a class token already
        theirs = theirs[:, 1:] if same(theirs[:, 1:], tokens) else theirs[:, :-1]
    rows, columns = layers.projection.output.shape[-2:]
    grid = (rows, columns)
    for order in ("rows", "columns", "unswapped"):
        ours = order_tokens(tokens, grid, order)
        if same(theirs, ours) or same(theirs.transpose(0, 1), ours) or same(theirs, ours[0]):
            if "projection" in found.given:
                found.given["projection"] = ours
            else:
                found.choices["token_order"] = order
            found.steps["projection"] = ours
            return ours
    found.unknown.append("projection")
    return theirs if theirs.shape == tokens.shape else tokens


def read_class_token(layers: ViTLayers, tokens: Tensor, found: Embedding) -> None:
    """The learned token that is joined with the patches."""
    event = layers.join
    token: Tensor | None
    if event is not None:
        token = event.weight.reshape(-1, layers.dim)[0]
        place = "first" if event.first else "last"
    else:
        event = next(iter(layers.embedding), layers.projection)
        token, place = written_token(event.data[0], tokens)
    found.choices["class_token"] = place
    if layers.tokens != tokens.shape[1] + (place != "none"):
        found.unknown.append("class token")
    if place == "none" or token is None:
        return
    found.weights["class_token"] = token
    column = token.expand(len(tokens), 1, -1)
    pair = (column, tokens) if place == "first" else (tokens, column)
    found.set_step("class token", torch.cat(pair, dim=1), event)


def written_token(theirs: Tensor, tokens: Tensor) -> tuple[Tensor | None, str]:
    """The token in a sequence that was filled in place, and where it is."""
    if theirs.shape[:-1] != (len(tokens), tokens.shape[1] + 1):
        return None, "none"
    if same(theirs[:, 1:], tokens):
        return theirs[0, 0], "first"
    return (theirs[0, -1], "last") if same(theirs[:, :-1], tokens) else (None, "none")


def read_positions(layers: ViTLayers, parameters: Mapping[str, Tensor], found: Embedding) -> None:
    """The rows that are added, and those that should be."""
    additions = [one for one in layers.embedding if one.kind == "add"]
    if not additions:
        found.choices["position_rows"] = "none"
        return
    used = sum_rows(additions, layers.batch)
    rows, tokens = len(used), layers.tokens
    names = {name for event in additions for name in event.names}
    whole = parameters[names.pop()] if len(names) == 1 else used
    table = whole.reshape(-1, layers.dim) if whole.numel() % layers.dim == 0 else used
    choice = "own" if rows == tokens else "patches"
    right = used
    if not same(used, table[:rows]):
        if rows == tokens - 1 and same(used, table[1 : rows + 1]):
            pass  # the row of the class token is there and not used
        elif len(table) >= tokens:
            choice, right = "shifted", table[:tokens]
            if not are_rows(used, table):
                found.unknown.append("positions")
    elif rows == tokens - 1 and len(table) == tokens:
        choice, right = "shifted", table
    found.choices["position_rows"] = choice
    found.weights |= {"positions": right, "used_positions": used}
    found.lines["positions"] = additions[0].line


def are_rows(used: Tensor, table: Tensor) -> bool:
    """Whether all rows that are added are rows of the table, or zero."""
    rows = torch.cat([table, torch.zeros_like(table[:1])])
    apart = (used[:, None] - rows).abs().amax(dim=-1).amin(dim=1)
    return bool((apart <= 1e-5 * table.abs().max()).all())


def sum_rows(additions: list[Event], batch: int) -> Tensor:
    """What is added to the tokens of the first image, all additions together."""
    rows = []
    for event in additions:
        part = event.weight.expand(event.output.shape)
        if part.ndim > 2 and len(part) != batch and part.shape[1] == batch:
            part = part.transpose(0, 1)  # tokens first
        rows.append(part.reshape(-1, *part.shape[-2:])[0] if part.ndim > 2 else part)
    if any(len(part) != len(rows[0]) for part in rows):
        return rows[0]
    return torch.stack(rows).sum(dim=0)
