"""Dialects of other packages: by a call, and by the metadata of a package on the path."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import vitrail
from vitrail import UserError, create, load, save
from vitrail.weights import registered
from vitrail.weights.convert import convert
from vitrail.weights.dialects.torchvision import TORCHVISION
from vitrail.weights.rows import within

TINY: dict[str, Any] = {
    "dim": 16, "depth": 1, "heads": 2, "mlp_dim": 24, "image_size": 32, "num_classes": 3,
}  # fmt: skip
PLUGIN = """
from dataclasses import replace
from vitrail.weights.dialects.torchvision import TORCHVISION
from vitrail.weights.rows import within

WRAPPED = replace(
    TORCHVISION,
    name="wrapped",
    rows=within("wrapper.", TORCHVISION.rows),
    sidecar_facts=lambda foreign, facts: {},
)
"""


@pytest.fixture(autouse=True)
def none_registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(registered, "_REGISTERED", {})
    registered.installed_dialects.cache_clear()
    yield
    registered.installed_dialects.cache_clear()


def test_a_registered_dialect_reads_and_writes(tmp_path: Path) -> None:
    native = save(create("vit_ti_16", **TINY), tmp_path / "native")
    convert(native, tmp_path / "plain.safetensors", to="torchvision")
    plain = load_file(tmp_path / "plain.safetensors")
    save_file({f"wrapper.{k}": v for k, v in plain.items()}, tmp_path / "wrapped.safetensors")
    with pytest.raises(UserError, match="none of the known dialects"):
        load(tmp_path / "wrapped.safetensors", heads=2)
    rows = within("wrapper.", TORCHVISION.rows)
    wrapped = replace(TORCHVISION, name="wrapped", rows=rows, sidecar_facts=lambda *_: {})
    vitrail.register_dialect(wrapped)
    ours = load(tmp_path / "wrapped.safetensors", heads=2)
    assert ours.passport.origin.dialect == "wrapped"
    convert(native, tmp_path / "again.safetensors", to="wrapped")
    again = load_file(tmp_path / "again.safetensors")
    assert all(torch.equal(again[f"wrapper.{name}"], tensor) for name, tensor in plain.items())


def test_an_installed_package_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through the metadata that installing it would leave."""
    (tmp_path / "wrapping.py").write_text(PLUGIN)
    info = tmp_path / "wrapping-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: wrapping\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[vitrail.dialects]\nwrapped = wrapping:WRAPPED\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert [dialect.name for dialect in registered.registered_dialects()] == ["wrapped"]
    native = save(create("vit_ti_16", **TINY), tmp_path / "native")
    assert convert(native, tmp_path / "out", to="wrapped").to == "wrapped"
    assert load(tmp_path / "out", heads=2).passport.origin.dialect == "wrapped"


def test_what_is_no_dialect_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="expected a vitrail Dialect, got str"):
        vitrail.register_dialect("timm")  # type: ignore[arg-type]  # what the test is about
    with pytest.raises(UserError, match="unknown family 'convnext'"):
        vitrail.register_dialect(replace(TORCHVISION, family="convnext"))
    vitrail.register_dialect(replace(TORCHVISION, name="mine"))
    with pytest.raises(UserError, match="'mine' is registered already"):
        vitrail.register_dialect(replace(TORCHVISION, name="mine"))
    info = tmp_path / "broken-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[vitrail.dialects]\nx = not_there_at_all:X\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match="entry point x of broken cannot be loaded"):
        registered.registered_dialects()
