"""A hand-written ViT beside the reference of the same sizes: every step, and what is different.

The module's copy computes in float64 with random parameters, because fresh ones hide mistakes: a
head of zeros has the same logits whatever is before it.
"""

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn

from vitrail.core.errors import UserError
from vitrail.explanation.check.diagnosis import Diagnosis, diagnose
from vitrail.explanation.check.findings import Expected, Finding, corrected, find_all
from vitrail.explanation.check.layers import find_layers
from vitrail.explanation.check.reference import Weights, reference_steps
from vitrail.explanation.check.trace import Trace
from vitrail.explanation.check.values import apart, same

Status: TypeAlias = Literal["same", "differs", "missing", "unseen"]
Verdict: TypeAlias = Literal["right", "mistake", "unknown"]
BATCH = 2  # images: more than one, so that a mixed batch is noticed


EXPLAINED = 1e-3  # how far apart outputs may be that are the same


@dataclass(frozen=True)
class Step:
    """One step of both: `missing` in the module, or `unseen` inside one fused operation.
    `value` and `reference_value` are those that differ most, `difference` is how much, as a share
    of the reference's largest."""

    name: str
    status: Status
    shape: tuple[int, ...] | None
    reference_shape: tuple[int, ...]
    value: float | None
    reference_value: float | None
    difference: float | None
    line: int | None


@dataclass(frozen=True)
class Inspection:
    """`reproduced`: how far the reference is from the module's output when it makes the same
    choices and the same mistakes."""

    findings: tuple[Finding, ...]
    steps: tuple[Step, ...]
    sizes: Mapping[str, Any]
    reproduced: float
    verdict: Verdict

    @property
    def is_explained(self) -> bool:
        """Whether the reference, with what was found, gives the module's output."""
        unknown = any(one.kind == "unknown" for one in self.findings)
        return self.reproduced <= EXPLAINED and not unknown


@torch.no_grad()
def lively_copy(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """A copy in eval mode on the CPU with random parameters; single numbers stay as they are."""
    try:
        made = copy.deepcopy(module)
    except Exception as error:
        raise UserError(f"the module cannot be copied ({error}): give its class instead") from None
    made = made.to("cpu", dtype).eval()
    generator = torch.Generator().manual_seed(0)
    for parameter in made.parameters():
        if parameter.numel() < 2 or not parameter.is_floating_point():
            continue
        fan_in = math.prod(parameter.shape[1:]) if parameter.ndim == 4 else parameter.shape[-1]
        size = 0.3 if parameter.ndim == 1 else fan_in**-0.5
        noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        parameter.add_(size * noise.to(dtype))
    return made


def random_images(channels: int, size: tuple[int, int], dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(BATCH, channels, *size, generator=generator, dtype=torch.float64).to(dtype)


def check_output(output: object) -> None:
    """Refuse what are no logits."""
    got = f"a {type(output).__name__}"
    if isinstance(output, Tensor):
        numbers = output.is_floating_point()
        if output.ndim == 2 and len(output) == BATCH and output.numel() and numbers:
            return
        got = f"shape {tuple(output.shape)}" + ("" if numbers else f" of {output.dtype}")
    raise UserError(
        f"the output must be logits of shape (images, classes) = ({BATCH}, K), got {got}: let "
        "forward return one row of logits for each image"
    )


@torch.no_grad()
def inspect_module(
    module: nn.Module, traced: Trace, images: Tensor, expected: Expected
) -> Inspection:
    """What a traced module does beside the reference; `module` is the copy that was traced."""
    layers = find_layers(traced, len(images))
    found = diagnose(layers, traced, module, images)
    unused = tuple(name for name, _ in module.named_parameters() if name not in traced.used)
    sizes = sizes_of(found, module, images)
    weights = with_unused_positions(found, module, unused)
    right = corrected(found.choices, weights)
    reference = reference_steps(weights, right, images)
    same_choices = right == found.choices
    imitated = reference if same_choices else reference_steps(found.weights, found.choices, images)
    steps = tuple(compare(found, reference))
    findings = find_all(found, traced, expected, unused, reference)
    findings += size_differences(sizes, expected)
    reproduced = apart(traced.output, imitated["output"])
    wrong = any(one.kind == "mistake" for one in findings)
    unknown = any(one.kind == "unknown" for one in findings) or reproduced > EXPLAINED
    verdict: Verdict = "mistake" if wrong else "unknown" if unknown else "right"
    return Inspection(tuple(findings), steps, sizes, reproduced, verdict)


def with_unused_positions(found: Diagnosis, module: nn.Module, unused: tuple[str, ...]) -> Weights:
    """The weights with a position table that the module has and does not add."""
    if found.weights.positions is not None:
        return found.weights
    size = found.layers.tokens * found.layers.dim
    tables = (module.get_parameter(name) for name in unused)
    table = next((one.reshape(-1, found.layers.dim) for one in tables if one.numel() == size), None)
    return replace(found.weights, positions=table)


def compare(found: Diagnosis, reference: Mapping[str, Tensor]) -> list[Step]:
    """Each step of the reference beside the module's own."""
    return [
        compare_step(name, found.steps.get(name), ours, found.lines.get(name))
        for name, ours in reference.items()
    ]


def compare_step(name: str, theirs: Tensor | None, ours: Tensor, line: int | None) -> Step:
    shape = tuple(ours.shape)
    if theirs is None:
        status: Status = "missing" if "norm" in name or name == "positions" else "unseen"
        return Step(name, status, None, shape, None, None, None, line)
    if theirs.shape != ours.shape:
        return Step(name, "differs", tuple(theirs.shape), shape, None, None, None, line)
    status = "same" if same(theirs, ours) else "differs"
    place = int((theirs - ours).abs().argmax())
    values = float(theirs.flatten()[place]), float(ours.flatten()[place])
    return Step(name, status, shape, shape, *values, apart(theirs, ours), line)


def sizes_of(found: Diagnosis, module: nn.Module, images: Tensor) -> dict[str, Any]:
    """The sizes in the words of ViTConfig."""
    layers = found.layers
    return {
        "image_size": tuple(images.shape[-2:]),
        "channels": images.shape[1],
        "patch_size": found.weights.patch,
        "tokens": layers.tokens,
        "dim": layers.dim,
        "depth": len(layers.blocks),
        "heads": layers.heads,
        "dim_head": layers.dim_head,
        "mlp_dim": layers.blocks[0].hidden.weight.shape[0],
        "num_classes": layers.head[-1].weight.shape[0],
        "params": sum(parameter.numel() for parameter in module.parameters()),
    }


def size_differences(sizes: Mapping[str, Any], expected: Expected) -> list[Finding]:
    return [
        Finding(
            "size",
            "difference",
            "output",
            values={
                "field": name,
                "yours": sizes[name],
                "theirs": theirs,
                "reference": expected.name,
            },
        )
        for name, theirs in expected.sizes.items()
        if sizes[name] != theirs
    ]
