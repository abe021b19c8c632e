"""Models of torchvision, measured beside ours: on every engine, through the same graph."""

import hashlib
from difflib import get_close_matches
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor, nn

from vitrail.core.errors import UserError
from vitrail.core.torchvision import mend_torchvision
from vitrail.inference.engines.model_graph import ModelGraph
from vitrail.inference.engines.runner import Plan, Runner

if TYPE_CHECKING:
    from torch.export import ExportedProgram

PREFIX = "torchvision:"
SIDE = 224  # of images, in pixels


def check_guest(name: str) -> str:
    """The name of a classifier of torchvision, as torchvision:mobilenet_v2."""
    known = torchvision_names()
    if name not in [f"{PREFIX}{model}" for model in known]:
        # without the prefix, which would make every name look alike
        near = get_close_matches(name.removeprefix(PREFIX).lower(), known, n=1, cutoff=0.6)
        hint = f"did you mean {PREFIX}{near[0]}?" if near else f"such as {PREFIX}mobilenet_v2"
        raise UserError(
            f"unknown guest {name!r}: use {PREFIX} and a name that "
            f"torchvision.models.list_models() gives, {hint}"
        )
    return name


def torchvision_names() -> list[str]:
    mend_torchvision()
    from torchvision import models

    return list(models.list_models(module=models))


def build_guest(name: str) -> nn.Module:
    """A fresh model: its weights do not change its speed."""
    mend_torchvision()
    from torchvision import models

    torch.manual_seed(0)
    module: nn.Module = models.get_model(name.removeprefix(PREFIX), weights=None)
    return module.eval()


class Named(nn.Module):
    """A classifier whose output has a name, as graphs need it."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, images: Float[Tensor, "B C H W"]) -> dict[str, Tensor]:
        return {"logits": self.module(images)}


class GuestGraph(ModelGraph):
    """The graph of a module that is not ours."""

    def __init__(self, name: str, plan: Plan) -> None:
        self.name, self.plan = name, plan
        self.module = build_guest(name)

    @cached_property
    def eager(self) -> Runner:
        @torch.inference_mode()
        def run(images: Float[Tensor, "B C H W"]) -> NDArray[np.float32]:
            return np.asarray(self.module(images).numpy())

        return run

    @cached_property
    def digest(self) -> str:
        digest = hashlib.sha256(self.name.encode())
        for tensor in self.module.state_dict().values():
            digest.update(np.ascontiguousarray(tensor.numpy()).data)
        return digest.hexdigest()

    @cached_property
    def program(self) -> "ExportedProgram":
        from vitrail.inference.graph import quiet

        with torch.no_grad(), quiet():
            images = torch.zeros(self.plan.shape)
            return torch.export.export(Named(self.module), (images,), strict=False)
