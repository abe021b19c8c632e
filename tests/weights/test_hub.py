"""hf-hub:owner/name from a cache as huggingface_hub lays it out, and never over the network."""

import hashlib
import socket
import sys
from pathlib import Path
from typing import Any, NoReturn

import huggingface_hub
import pytest
import torch
from huggingface_hub import constants
from safetensors.torch import save_file

import vitrail
from vitrail import UserError, load, save
from vitrail.weights.convert import convert

COMMIT = "0123456789abcdef0123456789abcdef01234567"
TINY: dict[str, Any] = {
    "dim": 16, "depth": 1, "heads": 2, "mlp_dim": 24, "image_size": 32, "num_classes": 3,
}  # fmt: skip


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, with the hub switched off and every connection an error."""

    def refuse(*_: object) -> NoReturn:
        raise AssertionError("the network was touched")

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    return tmp_path / "hub"


def put(cache: Path, repository: str, directory: Path, revision: str = "main") -> None:
    """A directory as the one snapshot of a repository: content in blobs, names as links to it."""
    store = cache / f"models--{repository.replace('/', '--')}"
    snapshot = store / "snapshots" / COMMIT
    for folder in (store / "blobs", store / "refs", snapshot):
        folder.mkdir(parents=True)
    (store / "refs" / revision).write_text(COMMIT)
    for file in directory.iterdir():
        blob = store / "blobs" / hashlib.sha256(file.read_bytes()).hexdigest()
        blob.write_bytes(file.read_bytes())
        (snapshot / file.name).symlink_to(Path("../../blobs") / blob.name)


def test_a_native_checkpoint(cache: Path, tmp_path: Path) -> None:
    model = vitrail.create("vit_ti_16", **TINY)
    put(cache, "someone/tiny", save(model, tmp_path / "tiny"))
    ours = load("hf-hub:someone/tiny")
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, ours.state_dict()[name])


def test_owner_and_name_alone(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where neither such a path nor a directory called like the owner is here."""
    monkeypatch.chdir(tmp_path)
    model = vitrail.create("vit_ti_16", **TINY)
    put(cache, "someone/tiny", save(model, tmp_path / "tiny"))
    ours = load("someone/tiny")
    assert torch.equal(ours.state_dict()["cls"], model.state_dict()["cls"])
    (tmp_path / "someone").mkdir()
    with pytest.raises(UserError, match="no such file"):
        load("someone/tiny")


def test_a_timm_repository(cache: Path, tmp_path: Path) -> None:
    model = vitrail.create("vit_ti_16", **TINY)
    save(model, tmp_path / "tiny")
    convert(tmp_path / "tiny", tmp_path / "timm", to="timm")
    put(cache, "timm/tiny", tmp_path / "timm", revision="v1")
    ours = load("hf-hub:timm/tiny@v1")
    assert ours.passport.origin.dialect == "timm"
    assert ours.config.image_size == (32, 32)
    with pytest.raises(UserError, match=r"^hf-hub:timm/tiny: not in the local cache"):
        load("hf-hub:timm/tiny")


def test_what_is_not_cached_is_one_sentence(cache: Path) -> None:
    with pytest.raises(UserError, match=r"'hf download someone/else'") as caught:
        load("hf-hub:someone/else")
    assert "\n" not in str(caught.value)


def test_a_repository_without_a_checkpoint(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "README.md").write_text("nothing here")
    put(cache, "someone/empty", tmp_path / "empty")
    with pytest.raises(UserError, match="holds no checkpoint that is known"):
        load("hf-hub:someone/empty")


def test_a_damaged_blob_is_one_sentence(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    save_file({"a": torch.zeros(1)}, tmp_path / "model" / "model.safetensors")
    put(cache, "someone/broken", tmp_path / "model")
    (blob,) = (cache / "models--someone--broken" / "blobs").iterdir()
    blob.write_bytes(blob.read_bytes()[:-1])
    with pytest.raises(UserError, match=r"hub.*model.safetensors: cannot be read"):
        load("hf-hub:someone/broken")


@pytest.mark.parametrize(
    "address", ["hf-hub:", "hf-hub:a/b/c", "hf-hub:what is this", "hf-hub:a--b"]
)
def test_no_address(address: str, cache: Path) -> None:
    with pytest.raises(UserError, match="expected hf-hub:owner/name"):
        load(address)


def test_without_huggingface_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(UserError, match=r"needs huggingface_hub: pip install 'vitrail\[hub\]'"):
        load("hf-hub:someone/tiny")


def test_whatever_the_network_raises(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> NoReturn:
        raise RuntimeError("407 Proxy Authentication Required\nand more")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    with pytest.raises(UserError, match=r"\(407 Proxy Authentication Required\)$"):
        load("hf-hub:someone/tiny")
