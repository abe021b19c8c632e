"""Which precision a machine computes well in."""

from contextlib import AbstractContextManager, nullcontext

import torch

from vitrail.core.errors import UserError


def check_precision(precision: str, device: torch.device) -> None:
    """Refuse half precision where it would be many times slower than float32."""
    if precision == "float32" or device.type != "cpu":
        return
    hardware = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    if precision == "float16" or not hardware:
        raise UserError(
            f"precision {precision} is about 20 times slower than float32 on this CPU, which has "
            "no hardware for it: use float32"
        )


def autocast(precision: str, device: torch.device) -> AbstractContextManager[object]:
    """Matrices in half precision; softmax, norms and losses stay in float32, as torch has it."""
    if precision == "float32":
        return nullcontext()
    return torch.autocast(device.type, dtype=getattr(torch, precision))


def make_scaler(precision: str, device: torch.device) -> torch.amp.GradScaler:
    """float16 knows no small gradients: losses are scaled up, and gradients down again."""
    return torch.amp.GradScaler(device.type, enabled=precision == "float16")
