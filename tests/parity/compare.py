"""How two models are shown to be the same: float64, random weights everywhere, outputs, blocks and
gradients."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch
from torch import Tensor, nn

from vitrail.core.without_init import without_init
from vitrail.models.model import Model

Peer = TypeVar("Peer", bound=nn.Module)
TOLERANCE = 1e-9
VERSIONS = {"": "v5 names", "-v4": "classic names"}  # of transformers' dialects


def in_both_versions(kinds: Iterable[str], classic: Sequence[str]) -> pytest.MarkDecorator:
    """Every kind in the names of version 5, and in the classic ones those that differ in names; the
    others differ in what names have nothing to do with, so there they are slow."""
    assert set(classic) <= set(kinds)
    cases = [
        pytest.param(
            kind,
            version,
            id=f"{kind}-{name}",
            marks=[pytest.mark.slow] if version and kind not in classic else [],
        )
        for kind in kinds
        for version, name in VERSIONS.items()
    ]
    return pytest.mark.parametrize(("kind", "version"), cases)


def shaken(peer: Peer, seed: int = 0) -> Peer:
    """The peer in float64 and evaluation mode with every parameter moved, so that no zero or one
    hides a mistake."""
    generator = torch.Generator().manual_seed(seed)
    peer = peer.double().eval()
    with torch.no_grad():
        for parameter in peer.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.add_(0.05 * noise)
    return peer


def images(channels: int, height: int, width: int, batch: int = 2) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(batch, channels, height, width, generator=generator, dtype=torch.float64)


def assert_same(
    ours: Model,
    theirs: nn.Module,
    image: Tensor,
    *,
    blocks: tuple[Iterable[nn.Module], Any] | None = None,
    call: Callable[[Any, Tensor], Tensor] = lambda model, x: model(x),
    mine: Callable[[Model, Tensor], Tensor] = lambda model, x: model(x),
) -> None:
    """Outputs, the output of every block and the gradient at the input within 1e-9.

    `blocks` are the two sequences of blocks; `call` and `mine` run the two models where that is
    not plain.
    """
    seen: dict[str, list[Tensor]] = {"ours": [], "theirs": []}
    handles = []
    for name, sequence in zip(seen, blocks or (), strict=False):
        for block in sequence:
            handles.append(block.register_forward_hook(_recorder(seen[name])))
    image = image.clone().requires_grad_()
    out_mine, out_theirs = mine(ours, image), call(theirs, image)
    for handle in handles:
        handle.remove()
    close(out_mine, out_theirs)
    assert not blocks or len(seen["ours"]) == len(seen["theirs"]) > 0
    for block_mine, block_theirs in zip(seen["ours"], seen["theirs"], strict=True):
        close(block_mine, block_theirs)
    weight = torch.linspace(-1, 1, out_mine.numel(), dtype=torch.float64).view_as(out_mine)
    (gradient_mine,) = torch.autograd.grad((out_mine * weight).sum(), image)
    (gradient_theirs,) = torch.autograd.grad((out_theirs * weight).sum(), image)
    assert gradient_theirs.abs().max() > 1e-6, "a gradient of nothing proves nothing"
    close(gradient_mine, gradient_theirs)


def close(mine: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(mine, theirs, rtol=0, atol=TOLERANCE)


def assert_identical(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    """The same names with the same bits."""
    assert one.keys() == other.keys()
    different = [name for name in one if not torch.equal(one[name], other[name])]
    assert not different, different


def _recorder(into: list[Tensor]) -> Callable[..., None]:
    def record(module: nn.Module, args: Any, output: Any) -> None:
        into.append(output[0] if isinstance(output, tuple) else output)

    return record


def blank_timm(name: str, **arguments: Any) -> Any:
    """timm's model of this name without values: its names and shapes."""
    import timm

    with without_init():
        return timm.create_model(name, **arguments)


def write_blank(peer: nn.Module, path: Path) -> Path:
    """A file with the names and shapes of a peer, which may be on the meta device; all zero."""
    from safetensors.torch import save_file

    save_file({name: torch.zeros(t.shape) for name, t in peer.state_dict().items()}, path)
    return path


def write_safetensors(peer: nn.Module, path: Path) -> Path:
    from safetensors.torch import save_file

    save_file({name: t.contiguous() for name, t in peer.state_dict().items()}, path)
    return path
