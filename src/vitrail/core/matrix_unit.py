"""Whether the matrix unit that a CPU advertises works: one product in another process tells."""

import signal
import subprocess
import sys
from functools import cache

import torch

from vitrail.core.errors import UserError

PRODUCT = "import torch; x = torch.ones(64, 64, dtype=torch.bfloat16); x @ x"
FAULTS = (-signal.SIGILL, 0xC000001D)  # an illegal instruction: POSIX, Windows
SWITCH_OFF = "set ONEDNN_MAX_CPU_ISA=AVX512_CORE_FP16 in the environment"


def has_bfloat16() -> bool:
    """Whether the CPU advertises instructions for it."""
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()


def check_bfloat16() -> None:
    """Refuse bfloat16 where the CPU advertises it and its first product would end this process."""
    if has_bfloat16() and product_faults():
        raise UserError(
            "this processor advertises bfloat16 but faults when it computes in it: use float32, or "
            f"{SWITCH_OFF}"
        )


def check_int8() -> None:
    """Refuse OpenVINO's int8 where it would take the same unit, and fault."""
    if torch.cpu._is_amx_tile_supported() and product_faults():
        raise UserError(
            "this processor advertises AMX, in which OpenVINO computes int8, but faults: use ONNX "
            f"Runtime, or {SWITCH_OFF}"
        )


@cache
def product_faults() -> bool:
    """Some virtual machines advertise AMX and refuse its instructions. Nothing survives that, so
    it is tried in another process, once."""
    tried = subprocess.run([sys.executable, "-P", "-c", PRODUCT], capture_output=True, check=False)
    return tried.returncode in FAULTS
