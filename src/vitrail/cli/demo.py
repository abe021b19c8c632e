"""`vitrail demo`: see it work, on this machine, without a download."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Demo:
    """The demo takes no choices yet."""


def demo(asked: Demo) -> None:
    """Build a small model, run it on noise and print what comes out."""
    import torch

    from vitrail.models.catalogue import create

    model = create("vit_ti_16", num_classes=10).eval()
    with torch.inference_mode():
        logits = model(torch.randn(1, 3, 224, 224))
    print(f"vit_ti_16 gave logits of shape {tuple(logits.shape)}")
