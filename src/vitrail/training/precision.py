"""Which precision a machine computes well in."""

from contextlib import AbstractContextManager, nullcontext

import torch

from vitrail.core.errors import UserError
from vitrail.core.matrix_unit import check_bfloat16, has_bfloat16


def check_precision(precision: str, device: torch.device) -> None:
    """Refuse half precision where it would be many times slower than float32, or end the run."""
    if precision == "float32" or device.type != "cpu":
        return
    if precision == "float16" or not has_bfloat16():
        raise UserError(
            f"precision {precision} is about 20 times slower than float32 on this CPU, which has "
            "no hardware for it: use float32"
        )
    check_bfloat16()


def autocast(precision: str, device: torch.device) -> AbstractContextManager[object]:
    """Matrices in half precision; softmax, norms and losses stay in float32, as torch has it."""
    if precision == "float32":
        return nullcontext()
    return torch.autocast(device.type, dtype=getattr(torch, precision))


def make_scaler(precision: str, device: torch.device) -> torch.amp.GradScaler:
    """float16 knows no small gradients: losses are scaled up, and gradients down again."""
    return torch.amp.GradScaler(device.type, enabled=precision == "float16")
