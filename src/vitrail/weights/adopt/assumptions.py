"""What adoption assumes where nothing decides it, a sentence each."""

from typing import Any

from vitrail.weights.adopt.propose import Proposal

ASSUMED = {
    "norm_eps": "LayerNorm eps {}",
    "activation": "activation {}",
    "norm_placement": "{}-norm blocks",
    "pool": "pooling: {}",
    "final_norm": "the last norm is on: {}",
    "pixels": "pixels of a patch in the order {}",
    "qkv": "q, k and v in the order {}",
    "positions": "positions: {} (the file has no table)",
    "transposed": "square parameters used as x @ w: {}",
    "class_token_place": "the class token comes {}",
    "merge": "heads are joined in the order {}",
    "split": "q, k and v are split into heads in the order {}",
    "patch_order": "patches follow each other in {}",
    "gated": "silu is applied to {}",
}
# defaults that need no mention by themselves
QUIET = ("merge", "split", "patch_order", "final_norm")


def sentences(proposal: Proposal) -> tuple[str, ...]:
    """What was assumed, a sentence each."""
    settings = {
        name: proposal.settings[name]
        for name, how in proposal.how.items()
        if how == "assumed" and name not in QUIET
    }
    return tuple(f"assumed: {ASSUMED[name].format(value)}" for name, value in settings.items())


def assumed_preparation(mean: Any, std: Any) -> str:
    """How images are prepared, as far as nobody said it.

    >>> assumed_preparation((0.4,), ())
    'assumed: images resized to the image size without cropping, std 0.5'
    """
    resized = "assumed: images resized to the image size without cropping"
    if mean and std:
        return resized
    values = "values in [-1, 1]" if not (mean or std) else "std 0.5" if mean else "mean 0.5"
    return f"{resized}, {values}"
