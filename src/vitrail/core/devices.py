"""The one choice of a device, and of the precision of weights."""

import torch

from vitrail.core.errors import UserError

PRECISIONS = {
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "float64": torch.float64,
}


def choose_device(device: str | torch.device | None) -> torch.device:
    """The device of that name; "auto" is the first of cuda, mps and cpu that is there, None the
    CPU.

    >>> choose_device("cpu")
    device(type='cpu')
    """
    if device is None:
        return torch.device("cpu")
    if device == "auto":
        return torch.device(next(name for name in ("cuda", "mps", "cpu") if is_there(name)))
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError):
        raise UserError(
            f'device must be auto, cpu, cuda, cuda:N or mps, got {device!r}: try device="auto"'
        ) from None
    if not is_there(found.type) or (found.type == "cuda" and not is_numbered(found)):
        raise UserError(f'this machine has no {device} device: try device="auto"')
    return found


def is_there(kind: str) -> bool:
    if kind == "cuda":
        return torch.cuda.is_available()
    if kind == "mps":
        return torch.backends.mps.is_available()
    return kind in ("cpu", "meta")


def is_numbered(device: torch.device) -> bool:
    return (device.index or 0) < torch.cuda.device_count()


def choose_dtype(dtype: str | torch.dtype) -> torch.dtype:
    """The precision of that name.

    >>> choose_dtype("bfloat16")
    torch.bfloat16
    """
    found = PRECISIONS.get(dtype) if isinstance(dtype, str) else dtype
    if found not in PRECISIONS.values():
        raise UserError(f"dtype must be one of {', '.join(PRECISIONS)}, got {dtype!r}")
    assert found is not None
    return found
