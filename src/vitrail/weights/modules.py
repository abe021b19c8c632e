"""Reading a model that is in memory already: a module of timm, transformers, torchvision,
vit-pytorch or open_clip, or ours.

Its weights and its own config go the way that files go, and what comes out is held against it.
"""

import copy
from dataclasses import asdict, replace
from functools import reduce
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from vitrail.core.errors import UserError
from vitrail.models.catalogue import change
from vitrail.models.model import Model
from vitrail.weights.checkpoint import Checkpoint, build_model, translate
from vitrail.weights.dialect import Foreign
from vitrail.weights.dialects import recognise
from vitrail.weights.module_sidecars import is_timm_tower, module_attributes, sidecars_of
from vitrail.weights.native import weights_of
from vitrail.weights.resize_state import needs_new_head
from vitrail.weights.translate import Coverage

# How far apart two code bases come out by rounding alone, as a share of the largest logit. Both
# compute in float64; fixed tables of a module are rounded to the precision that it was in.
NEAR = {torch.float64: 1e-9, torch.float32: 1e-6}
HALF = 0.02


def open_module(module: nn.Module, *, dialect: str | None, overrides: dict[str, Any]) -> Checkpoint:
    """What a module holds, as `load` reads a file; one of ours has its own passport.

    `overrides` answer what neither tensors nor config specify. Theirs and ours compute one image of
    noise: a module that ours does not agree with is refused.
    """
    module = inside(module)
    if any(name.endswith("weight_orig") for name, _ in module.named_parameters()):
        raise UserError(
            f"the {type(module).__name__} that you gave is pruned by a mask: make that permanent "
            "with torch.nn.utils.prune.remove(layer, 'weight')"
        )
    if isinstance(module, Model):
        state, passport = weights_of(module), module.passport
        return Checkpoint(state, module.config, passport, "vitrail", Coverage(), ())
    given = module.visual if isinstance(module, ImageTower) else module
    name = f"the {type(given).__name__} that you gave"
    tensors = {name: tensor.detach().cpu() for name, tensor in module.state_dict().items()}
    foreign = Foreign(name, tensors, sidecars_of(module))
    origin = f"{type(given).__module__}.{type(given).__qualname__}"
    known = recognise(foreign, dialect, proven=True)
    overrides = module_attributes(module) | overrides
    checkpoint = translate(foreign, known, origin=origin, overrides=overrides)
    checkpoint = with_eps(checkpoint, module)
    prove(build_model(checkpoint, checkpoint.config), module, checkpoint)
    return checkpoint


def inside(module: nn.Module) -> nn.Module:
    """The module inside what compiling, data parallelism and averaging put around it."""
    around = (nn.DataParallel, nn.parallel.DistributedDataParallel, AveragedModel)
    while isinstance(module, (torch._dynamo.OptimizedModule, *around)):
        inner = module.module if isinstance(module, around) else module._orig_mod
        assert isinstance(inner, nn.Module)
        module = inner
    return ImageTower(module) if is_timm_tower(module) else module


class ImageTower(nn.Module):
    """A timm tower of open_clip by itself, with the names that it has in its CLIP model."""

    def __init__(self, visual: nn.Module) -> None:
        super().__init__()
        self.visual = visual

    def forward(self, image: Tensor) -> Any:
        return self.visual(image)


def with_eps(checkpoint: Checkpoint, module: nn.Module) -> Checkpoint:
    """The checkpoint with the eps of the module's LayerNorms, where they all have one."""
    found = {part.eps for part in module.modules() if isinstance(part, nn.LayerNorm)}
    if len(found) != 1 or not hasattr(checkpoint.config, "norm_eps"):
        return checkpoint
    config = change(checkpoint.config, {"norm_eps": found.pop()})
    passport = replace(checkpoint.passport, config=asdict(config))
    return replace(checkpoint, config=config, passport=passport)


def noted_dtype(module: nn.Module, checkpoint: Checkpoint) -> tuple[torch.dtype, Checkpoint]:
    """The precision of a module's copy, which has one: the widest, so that no value changes."""
    dtypes = {parameter.dtype for parameter in module.parameters()}
    widest = reduce(torch.promote_types, dtypes)
    if len(dtypes) == 1:
        return widest, checkpoint
    names = sorted(str(dtype).removeprefix("torch.") for dtype in dtypes)
    note = f"all in {str(widest).removeprefix('torch.')}: the module has {' and '.join(names)}"
    passport, origin = checkpoint.passport, checkpoint.passport.origin
    passport = replace(passport, origin=replace(origin, changes=(*origin.changes, note)))
    return widest, replace(checkpoint, passport=passport, notes=(*checkpoint.notes, note))


def freeze_like(model: Model, module: nn.Module, checkpoint: Checkpoint) -> None:
    """Parameters that are frozen in the module are frozen in its copy; a new head is not."""
    theirs = dict(inside(module).named_parameters())
    used = checkpoint.coverage.used or [(name, name) for name in theirs]
    sources: dict[str, list[nn.Parameter]] = {}
    for name, ours in used:
        if name in theirs:
            sources.setdefault(ours, []).append(theirs[name])
    for name, parameter in model.named_parameters():
        parts = sources.get(name, [])
        new = name.startswith("head") and needs_new_head(checkpoint.config, model.config)
        if parts and not new and not any(part.requires_grad for part in parts):
            parameter.requires_grad_(False)


@torch.no_grad()
def prove(ours: Model, module: nn.Module, checkpoint: Checkpoint) -> None:
    """Both compute the same of one image, or the module is refused."""
    config, first = checkpoint.config, next(module.parameters())
    generator = torch.Generator().manual_seed(0)
    image = torch.randn(1, config.channels, *config.image_size, generator=generator).double()
    peer = copy.deepcopy(module).to("cpu", torch.float64).eval()
    theirs, ours = output_of(run_unmasked(peer, image.clone())), ours.double()
    name = type(module).__name__
    tokens = isinstance(theirs, Tensor) and theirs.ndim == 3  # a model without a head
    mine = ours.encode(image) if tokens else ours(image)
    mine = mine.flatten(1, -2) if tokens else mine  # a grid of them may be a sequence there
    if theirs is None or theirs.shape != mine.shape:
        shape = "no logits" if theirs is None else f"{tuple(theirs.shape)}"
        raise UserError(
            f"the output of the {name} that you gave is {shape}, ours {tuple(mine.shape)}: give a "
            "model with the head that it classifies with"
        )
    theirs = theirs.to(mine)
    apart, largest = float((mine - theirs).abs().max()), float(theirs.abs().max())
    if not apart <= NEAR.get(first.dtype, HALF) * max(largest, 1e-6):
        raise UserError(
            f"the {name} that you gave reads as {checkpoint.dialect}, but computes something that "
            f"no tensor shows: its output is {apart:.1e} apart from ours; name its dialect, or "
            "what is different about it (image_size=, heads=, activation=)"
        )


def run_unmasked(peer: nn.Module, image: Tensor) -> Any:
    """What a module computes of an image; a masked autoencoder of transformers is its encoder, and
    reads every patch in its place."""
    config = getattr(peer, "config", None)
    encode_image: Any = getattr(peer, "encode_image", None)
    if encode_image is not None:  # CLIP
        return encode_image(image)
    if not hasattr(config, "mask_ratio"):
        return peer(image)
    config.mask_ratio = 0.0  # type: ignore[union-attr]
    encoder: Any = getattr(peer, "base_model", peer)
    patches = encoder.embeddings.patch_embeddings.num_patches
    return encoder(image, noise=torch.arange(patches).expand(len(image), -1))


def output_of(answer: Any) -> Tensor | None:
    """Logits or features, or the tokens of a model without a head."""
    for name in ("logits", "last_hidden_state"):
        answer = getattr(answer, name, answer)
    return answer if isinstance(answer, Tensor) else None
