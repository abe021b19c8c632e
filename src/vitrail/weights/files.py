"""Files of tensors: safetensors (whole or in shards), npz, and pickles through `weights_only` alone."""

import json
import math
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from vitrail.core.errors import UserError
from vitrail.weights.dialect import Foreign
from vitrail.weights.rows import Tensors

PICKLES = (".pth", ".pt", ".bin", ".ckpt", ".tar")
SUFFIXES = (".safetensors", ".npz", *PICKLES)
SIDECARS = ("config.json", "preprocessor_config.json", "open_clip_config.json")
# Names under which a directory of the ecosystem keeps its tensors, in order of preference.
WEIGHTS = (
    "model.safetensors",
    "model.safetensors.index.json",
    "open_clip_model.safetensors",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
    "open_clip_pytorch_model.bin",
)
MAX_JSON = 16 * 2**20  # bytes; the largest index of shards in public use is far below


def read_foreign(path: Path) -> Foreign:
    """The tensors and sidecars at a path: a file, or a directory as model hubs lay it out."""
    if path.is_dir():
        found = [path / name for name in WEIGHTS if (path / name).is_file()]
        loose = sorted(file for file in path.iterdir() if file.suffix in (".safetensors", ".npz"))
        if not found and len(loose) != 1:
            raise UserError(
                f"{path}: no checkpoint in this directory: expected one of {', '.join(WEIGHTS)}"
            )
        weights = (found or loose)[0]
    elif path.is_file():
        weights = path
    else:
        raise UserError(f"{path}: no such file or directory")
    beside = path if path.is_dir() else path.parent
    # a lone file speaks for itself: another model's config.json may lie beside it by chance
    names = SIDECARS if path.is_dir() or weights.name in WEIGHTS else ()
    sidecars = {name: read_json(beside / name) for name in names if (beside / name).is_file()}
    return Foreign(str(path), read_tensors(weights), sidecars)


def read_tensors(path: Path) -> Tensors:
    """Every tensor of a file by its name."""
    if path.name.endswith(".index.json"):
        return _read_shards(path)
    if path.suffix == ".safetensors":
        return _guarded(path, lambda: load_file(path))
    if path.suffix == ".npz":
        return _guarded(path, lambda: _read_npz(path))
    if path.suffix in PICKLES:
        return _unwrap(_read_pickle(path), path)
    raise UserError(f"{path}: unknown format {path.suffix!r}, expected {', '.join(SUFFIXES)}")


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file of sane size."""

    def parse() -> Any:
        if path.stat().st_size > MAX_JSON:
            raise ValueError(f"{path.stat().st_size} bytes are too many for a JSON file")
        return json.loads(path.read_text(encoding="utf-8"))

    value = _guarded(path, parse)
    if not isinstance(value, dict):
        raise UserError(f"{path}: expected a JSON object, got {type(value).__name__}")
    return value


def write_tensors(tensors: Tensors, path: Path, *, wrapped: str | None = None) -> None:
    """Write in the format that the suffix names; `wrapped` is the entry that holds them in a .pth."""
    if path.suffix == ".safetensors":
        save_file(tensors, path, metadata={"format": "pt"})
    elif path.suffix == ".npz":
        _write_npz(tensors, path)
    elif path.suffix in PICKLES:
        torch.save({wrapped: tensors} if wrapped else tensors, path)
    else:
        raise UserError(f"{path}: unknown format {path.suffix!r}, expected {', '.join(SUFFIXES)}")


def _guarded(path: Path, action: Callable[[], Any]) -> Any:
    """Whatever a reader makes of a broken file, the person gets one sentence."""
    try:
        return action()
    except (
        SafetensorError,
        OSError,
        ValueError,
        KeyError,
        TypeError,
        EOFError,
        OverflowError,
        MemoryError,
        RecursionError,
        NotImplementedError,
        RuntimeError,
        zipfile.BadZipFile,
        zipfile.LargeZipFile,
    ) as error:
        lines = str(error).strip().splitlines()
        reason = lines[0] if lines else type(error).__name__
        raise UserError(
            f"{path}: cannot be read, it is damaged or something else: {reason}"
        ) from None


def _read_shards(index: Path) -> Tensors:
    places = read_json(index).get("weight_map")
    if not isinstance(places, Mapping) or not all(isinstance(v, str) for v in places.values()):
        raise UserError(f"{index}: expected a weight_map from tensor names to file names")
    tensors: Tensors = {}
    for name in sorted(set(places.values())):
        if Path(name).name != name:
            raise UserError(f"{index}: shard {name!r} is not a plain file name")
        if not (index.parent / name).is_file():
            raise UserError(f"{index}: shard {name} is missing beside it: fetch it, then try again")
        tensors |= read_tensors(index.parent / name)
    if missing := [name for name in places if name not in tensors]:
        raise UserError(
            f"{index}: the shards lack {missing[0]} and {len(missing) - 1} more tensors"
        )
    return tensors


def _read_npz(path: Path) -> Tensors:
    tensors: Tensors = {}
    with zipfile.ZipFile(path) as archive:
        _refuse_bomb(archive)
        for member in archive.infolist():
            with archive.open(member) as stream:
                array = _read_npy(stream, member)
            tensors[member.filename.removesuffix(".npy")] = torch.from_numpy(array)
    return tensors


def _refuse_bomb(archive: zipfile.ZipFile) -> None:
    packed = sum(member.compress_size for member in archive.infolist())
    whole = sum(member.file_size for member in archive.infolist())
    if whole > 2**30 and whole > 100 * packed:
        raise ValueError(f"{packed} bytes that unpack to {whole} are no checkpoint")


def _read_npy(stream: Any, member: zipfile.ZipInfo) -> np.ndarray[Any, np.dtype[Any]]:
    """One array, whose header has to agree with the bytes that are there before any memory is taken."""
    version = np.lib.format.read_magic(stream)
    header = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }.get(version)
    if header is None:
        raise ValueError(f"{member.filename} has array format {version}, expected 1.0 or 2.0")
    shape, fortran, dtype = header(stream)
    if dtype.hasobject or dtype.kind not in "fiub":
        # bfloat16 arrays come as two raw bytes, which is what big_vision writes
        if dtype.kind != "V" or dtype.itemsize != 2:
            raise ValueError(f"{member.filename} holds {dtype}, not plain numbers")
    count = math.prod(shape)
    if count * dtype.itemsize > member.file_size:
        raise ValueError(f"{member.filename} is {shape} by its header, but is too short for that")
    data = np.frombuffer(stream.read(count * dtype.itemsize), dtype=dtype, count=count)
    if dtype.kind == "V":
        widened = data.view(np.uint16).astype(np.uint32) << 16
        data = widened.view(np.float32)
    data = data.astype(data.dtype.newbyteorder("="))  # also a copy of our own, writable
    return data.reshape(shape, order="F" if fortran else "C")


def _write_npz(tensors: Tensors, path: Path) -> None:
    # numpy has no bfloat16
    arrays = {
        name: (tensor.float() if tensor.dtype is torch.bfloat16 else tensor).numpy()
        for name, tensor in tensors.items()
    }
    with path.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]


def _read_pickle(path: Path) -> Any:
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged pickle can raise anything; none of its code has run
        first = next(iter(str(error).strip().splitlines()), type(error).__name__)
        if "weights_only" in str(error).lower() or "unsupported" in str(error).lower():
            first = "it holds more than tensors, and code in a checkpoint is never run"
        raise UserError(f"{path}: cannot be read as plain tensors: {first}") from None


def _unwrap(value: Any, path: Path) -> Tensors:
    """The flat tensors inside the layers that training scripts put around them."""
    containers = ("state_dict", "model", "model_state_dict", "teacher", "module")
    while isinstance(value, Mapping):
        tensors = {name: item for name, item in value.items() if isinstance(item, Tensor)}
        inner = next(
            (value[key] for key in containers if isinstance(value.get(key), Mapping)), None
        )
        if inner is None or len(tensors) > 1:
            break
        value = inner
    else:
        tensors = {}
    if not tensors:
        raise UserError(f"{path}: no tensors by name in this file: expected a state dict")
    if strange := [name for name in tensors if not isinstance(name, str)]:
        raise UserError(f"{path}: tensor name {strange[0]!r} is not a string")
    prefix = "module."
    if all(name.startswith(prefix) for name in tensors):  # left by DataParallel
        tensors = {name.removeprefix(prefix): item for name, item in tensors.items()}
    return {name: item.detach() for name, item in tensors.items()}
