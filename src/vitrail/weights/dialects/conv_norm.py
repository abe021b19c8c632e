"""Rows for a convolution and its batch norm, which many code bases write side by side."""

import torch

from vitrail.weights.rows import Row, same, supply

COUNTED = "counts the batches of training, and nothing is computed from it"
STATISTICS = ("weight", "bias", "running_mean", "running_var")  # what {n} runs over


def conv_norm(conv: str, norm: str, ours: str) -> tuple[Row, ...]:
    """Their convolution and their norm are one `ConvNorm` of ours."""
    return (
        same(f"{conv}.weight", f"{ours}.conv.weight"),
        same(f"{norm}.{{n}}", f"{ours}.norm.{{n}}"),
        supply(
            f"{norm}.num_batches_tracked",
            lambda _: torch.tensor(0),
            why=COUNTED,
            like=f"{ours}.norm.running_mean",
        ),
    )
