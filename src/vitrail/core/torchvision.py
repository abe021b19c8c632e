"""A guard for a torchvision whose compiled operators do not load, as a CUDA build beside a CPU
torch.

Importing such a torchvision fails with "operator torchvision::nms does not exist", although
transforms, data sets and models need none of them. Declaring the two missing operators before the
import mends that.
"""

from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec
from pathlib import Path

import torch

_declared: list[torch.library.Library] = []  # a library's definitions live as long as it does


def mend_torchvision() -> None:
    """Make `import torchvision` work; nothing happens where its own operators load. Safe to call
    twice."""
    if _has_operators() or _declared:
        return
    library = torch.library.Library("torchvision", "DEF")
    library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _declared.append(library)


def _has_operators() -> bool:
    if hasattr(torch.ops.torchvision, "nms"):
        return True
    spec = find_spec("torchvision")
    if spec is None or spec.origin is None:
        return False
    for suffix in (*EXTENSION_SUFFIXES, ".so", ".pyd"):
        extension = Path(spec.origin).with_name(f"_C{suffix}")
        if extension.is_file():
            try:
                torch.ops.load_library(extension)
            except OSError:
                continue
            return hasattr(torch.ops.torchvision, "nms")
    return False
