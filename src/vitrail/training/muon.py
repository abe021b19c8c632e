"""Muon (Jordan 2024, arXiv:2502.16982): momentum whose matrices are made nearly orthogonal.

torch has one that computes in bfloat16, some hundred times slower on a CPU without hardware for
it, one matrix after another. This one takes the precision a device computes well in, many matrices
of one shape at once, and queries, keys and values each for themselves.
"""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.training.sharded import full_tensor, shard_like

COEFFICIENTS, ITERATIONS = (3.4445, -4.7750, 2.0315), 5
# Numbers of the matrices that are orthogonalised at once: every process has those whole, however
# large the model is that it has a share of.
MAX_NUMBERS = 2**26


class Muon(torch.optim.Optimizer):
    """Nesterov momentum, orthogonalised, with steps as large as AdamW's (0.2 · √(longer side)), so
    that one learning rate serves both. `parts` matrices lie above each other in a parameter."""

    def __init__(self, groups: list[dict[str, Any]], *, lr: float, momentum: float = 0.95) -> None:
        super().__init__(groups, {"lr": lr, "momentum": momentum, "weight_decay": 0.0, "parts": 1})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        assert closure is None
        for group in self.param_groups:
            shapes: dict[torch.Size, list[Tensor]] = {}
            for parameter in group["params"]:
                if parameter.grad is not None:
                    shapes.setdefault(parameter.shape, []).append(parameter)
            for shape, parameters in shapes.items():
                most = max(MAX_NUMBERS // shape.numel(), 1)
                for first in range(0, len(parameters), most):
                    self.update(parameters[first : first + most], shape, group)

    def update(self, parameters: list[Tensor], shape: torch.Size, group: dict[str, Any]) -> None:
        """One step of matrices of one shape."""
        lr, momentum, parts = group["lr"], group["momentum"], group["parts"]
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        buffers = [self.buffer(parameter) for parameter in parameters]
        torch._foreach_lerp_(buffers, gradients, 1 - momentum)
        # a matrix is orthogonal as a whole: where processes share it, each computes all of it
        ahead = torch.stack(
            [full_tensor(t) for t in torch._foreach_lerp(gradients, buffers, momentum)]
        )
        rows = shape[0] // parts
        flat = orthogonalise(ahead.view(-1, rows, shape[1])).reshape(-1, *shape)
        torch._foreach_mul_(parameters, 1 - lr * group["weight_decay"])
        reach = 0.2 * max(rows, shape[1]) ** 0.5
        changes = [
            shard_like(change, parameter)
            for change, parameter in zip(flat, parameters, strict=True)
        ]
        torch._foreach_add_(parameters, changes, alpha=-lr * reach)

    def buffer(self, parameter: Tensor) -> Tensor:
        state = self.state[parameter]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(parameter)
        buffer: Tensor = state["momentum"]
        return buffer


def orthogonalise(matrices: Float[Tensor, "n r c"]) -> Float[Tensor, "n r c"]:
    """Nearly U Vᵀ of each matrix U S Vᵀ: a quintic Newton-Schulz iteration that brings every
    singular value near 1.

    >>> values = torch.linalg.svdvals(orthogonalise(torch.randn(1, 8, 4)))
    >>> bool((values > 0.5).all() and (values < 1.5).all())
    True
    """
    a, b, c = COEFFICIENTS
    half = matrices.is_cuda
    x = matrices.bfloat16() if half else matrices.float()
    tall = x.shape[1] > x.shape[2]
    x = x.mT if tall else x
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    for _ in range(ITERATIONS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x
