"""Files of tensors: safetensors, whole or in shards, npz, and pickles by `weights_only` alone.

A file is not to be trusted: what it claims is held against the bytes that are there before memory
is taken, no code in it runs, and whatever a reader makes of it, a person gets one sentence.
"""

import argparse
import hashlib
import json
import lzma
import math
import os
import struct
import tokenize
import warnings
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from vitrail.core.errors import UserError
from vitrail.weights.dialect import Foreign
from vitrail.weights.rows import Tensors

T = TypeVar("T")

PICKLES = (".pth", ".pt", ".bin", ".ckpt", ".tar")
SUFFIXES = (".safetensors", ".npz", *PICKLES)
SIDECARS = ("config.json", "preprocessor_config.json", "open_clip_config.json")
INDEX = ".index.json"
# Names under which a directory of the ecosystem keeps its tensors, in order of preference.
WEIGHTS = (
    "model.safetensors",
    "model.safetensors.index.json",
    "open_clip_model.safetensors",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
    "open_clip_pytorch_model.bin",
    "model.pth",
)
# Entries under which training scripts keep the tensors, in order of preference: an average of the
# weights is what they evaluate, and DINO's teacher is one, its student a by-product.
CONTAINERS = (
    "state_dict_ema",
    "model_ema",
    "ema",
    "state_dict",
    "model",
    "model_state_dict",
    "model_state",
    "net",
    "network",
    "teacher",
    "module",
    "student",
)
PREFIXES = ("module.", "_orig_mod.", "model.")  # of data parallelism, compiling, a framework

MAX_JSON = 16 * 2**20  # bytes; the largest index of shards in public use is far below
MAX_UNPACKED = 100  # times the packed size; weights hardly shrink when they are packed
MAX_SHARED = 4  # times the size of a pickle that its tensors may have by sharing memory

# What readers of other people's formats raise when a file is damaged.
DAMAGED = (
    SafetensorError,
    OSError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    EOFError,
    ArithmeticError,
    MemoryError,
    RuntimeError,  # RecursionError and NotImplementedError too
    SyntaxError,
    struct.error,
    tokenize.TokenError,
    zlib.error,
    lzma.LZMAError,
    zipfile.BadZipFile,
    zipfile.LargeZipFile,
)


def read_foreign(path: Path) -> Foreign:
    """The tensors and sidecars at a path: a file, or a directory as model hubs lay it out."""
    # os.path answers for paths that are too long or forbidden, where Path raises
    if os.path.isdir(path):
        weights, beside = _in_directory(path), path
    elif os.path.isfile(path):
        weights, beside = path, path.parent
    else:
        raise UserError(f"{path}: no such file or directory")
    # a lone file is read alone: another model's config.json may lie beside it by chance
    names = SIDECARS if beside is path or weights.name in WEIGHTS else ()
    sidecars = {name: read_json(beside / name) for name in names if (beside / name).is_file()}
    notes, wrapped = list[str](), list[str]()
    if weights.suffix in PICKLES:
        inner, notes, wrapped = _unwrap(_read_pickle(weights), weights)
        tensors = _flat(inner, weights)
    else:
        tensors = read_tensors(weights)
    bare = _bare(tensors)
    if prefix := _prefix(tensors, bare):
        wrapped.append(f"names without the prefix {prefix}")
    return Foreign(str(path), bare, sidecars, tuple(notes), tuple(wrapped))


def _in_directory(path: Path) -> Path:
    found = [path / name for name in WEIGHTS if (path / name).is_file()]
    if found:
        return found[0]
    files = _guarded(path, lambda: sorted(path.iterdir()))
    loose = [file for file in files if file.suffix in (".safetensors", ".npz")]
    if len(loose) != 1:
        raise UserError(
            f"{path}: no checkpoint in this directory: expected one of {', '.join(WEIGHTS)}"
        )
    return loose[0]


def read_tensors(path: Path) -> Tensors:
    """Every tensor of a file by its name."""
    if path.name.endswith(INDEX):
        return _read_shards(path)
    if path.suffix == ".safetensors":
        return _guarded(path, lambda: load_file(path))
    if path.suffix == ".npz":
        return _guarded(path, lambda: _read_npz(path))
    if path.suffix in PICKLES:
        return _bare(_flat(_unwrap(_read_pickle(path), path)[0], path))
    raise UserError(f"{path}: unknown format {path.suffix!r}, expected {', '.join(SUFFIXES)}")


def tensor_names(path: Path) -> list[str]:
    """The names alone of the tensors in a safetensors file."""

    def names() -> list[str]:
        with safe_open(path, "pt") as file:
            return list(file.keys())

    return _guarded(path, names)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file of sane size."""

    def number(text: str) -> float:
        value = float(text)
        if not math.isfinite(value):
            raise ValueError(f"{text} is no number that JSON knows")
        return value

    def parse() -> Any:
        if path.stat().st_size > MAX_JSON:
            raise ValueError(f"{path.stat().st_size} bytes are too many for a JSON file")
        text = path.read_text(encoding="utf-8")
        return json.loads(text, parse_float=number, parse_constant=number)

    value = _guarded(path, parse)
    if not isinstance(value, dict):
        raise UserError(f"{path}: expected a JSON object, got {type(value).__name__}")
    return value


def write_tensors(tensors: Tensors, path: Path, *, wrapped: str | None = None) -> None:
    """Write in the format of the suffix; `wrapped` is the entry of a .pth that holds them."""
    if path.suffix not in SUFFIXES:
        raise UserError(f"{path}: unknown format {path.suffix!r}, expected {', '.join(SUFFIXES)}")
    tensors = _apart(tensors, whole=path.suffix in PICKLES)
    try:
        if path.suffix == ".safetensors":
            path.touch()
            mode = path.stat().st_mode  # by the umask, where safetensors makes it 0600
            save_file(tensors, path, metadata={"format": "pt"})
            path.chmod(mode)
        elif path.suffix == ".npz":
            _write_npz(tensors, path)
        else:
            # through a stream, or the archive inside would bear the name of a draft
            with path.open("wb") as file:
                torch.save({wrapped: tensors} if wrapped else tensors, file)
    except (SafetensorError, RuntimeError) as error:  # what these two raise if the disk is full
        raise OSError(_first_line(error)) from None


def _apart(tensors: Tensors, *, whole: bool) -> Tensors:
    """The same with copies of those that overlap, which safetensors refuses, and for a pickle of
    those that are part of something `whole`, all of which it would save."""
    copied, end = set(), 0
    for name, tensor in sorted(tensors.items(), key=lambda item: item[1].data_ptr()):
        if tensor.data_ptr() < end or (whole and tensor.untyped_storage().nbytes() > tensor.nbytes):
            copied.add(name)
        end = max(end, tensor.data_ptr() + tensor.nbytes)
    return {name: t.clone() if name in copied else t for name, t in tensors.items()}


def _guarded(path: Path, action: Callable[[], T]) -> T:
    """Whatever a reader makes of a broken file, the person gets one sentence."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # numpy's, about headers of Python 2
            return action()
    except DAMAGED as error:
        raise UserError(
            f"{path}: cannot be read, it is damaged or something else: {_first_line(error)}"
        ) from None


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    # torch goes on about the internals of its own reader
    return lines[0].partition(". This is an internal")[0] if lines else type(error).__name__


def _read_shards(index: Path) -> Tensors:
    places = read_json(index).get("weight_map")
    if not isinstance(places, Mapping) or not all(isinstance(v, str) for v in places.values()):
        raise UserError(f"{index}: expected a weight_map from tensor names to file names")
    tensors: Tensors = {}
    for name in sorted(set(places.values())):
        # an index must not lead out of its directory, nor to an index: that may be itself
        if Path(name).name != name or Path(name).suffix not in SUFFIXES:
            raise UserError(f"{index}: shard {name!r} is not the plain name of a file of tensors")
        if not os.path.isfile(index.parent / name):
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
        _refuse_bomb(archive, path)
        for member in archive.infolist():
            name = member.filename.removesuffix(".npy")
            if name in tensors:
                raise ValueError(f"{name} is there twice")
            with archive.open(member) as stream:
                tensors[name] = torch.from_numpy(_read_npy(stream, member))
    return tensors


def _refuse_bomb(archive: zipfile.ZipFile, path: Path) -> None:
    packed = sum(member.compress_size for member in archive.infolist())
    whole = sum(member.file_size for member in archive.infolist())
    size = path.stat().st_size
    if packed > size:
        raise ValueError(f"it claims {packed} packed bytes, but has {size}")
    if whole > 2**28 and whole > MAX_UNPACKED * size:
        raise ValueError(f"{size} bytes that unpack to {whole} are no checkpoint")


def _read_npy(stream: Any, member: zipfile.ZipInfo) -> np.ndarray[Any, np.dtype[Any]]:
    """One array; its header has to agree with the bytes that are there before memory is taken."""
    version = np.lib.format.read_magic(stream)
    header = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }.get(version)
    if header is None:
        raise ValueError(f"{member.filename} has array format {version}, expected 1.0 or 2.0")
    shape, fortran, dtype = header(stream)
    # bfloat16 arrays come as two raw bytes, which is what big_vision writes
    bfloat16 = dtype.kind == "V" and dtype.itemsize == 2 and dtype.names is None
    if dtype.hasobject or not (dtype.kind in "fiub" or bfloat16):
        raise ValueError(f"{member.filename} holds {dtype}, not plain numbers")
    if any(side < 0 for side in shape):
        raise ValueError(f"{member.filename} has the shape {shape}")
    size = math.prod(shape) * dtype.itemsize
    if size > member.file_size:
        raise ValueError(f"{member.filename} is {shape} by its header, but is too short for that")
    data = np.frombuffer(bytearray(stream.read(size)), dtype=np.uint16 if bfloat16 else dtype)
    if bfloat16:
        data = (data.astype(np.uint32) << 16).view(np.float32)
    data = data.astype(data.dtype.newbyteorder("="), copy=False)
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
    if _guarded(path, lambda: zipfile.is_zipfile(path)):
        with _guarded(path, lambda: zipfile.ZipFile(path)) as archive:
            _guarded(path, lambda: _refuse_bomb(archive, path))
    try:
        # training scripts keep their arguments beside the tensors: a bag of plain values
        with warnings.catch_warnings(), torch.serialization.safe_globals([argparse.Namespace]):
            warnings.simplefilter("ignore")
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged pickle can raise anything; none of its code has run
        first = _first_line(error)
        if isinstance(error, EOFError | OSError):  # torch seeks what is not there
            first = "it is empty or cut off"
        elif "torchscript" in str(error).lower():
            first = (
                "it is a TorchScript program rather than tensors, as OpenAI's CLIP files are: "
                "save the state_dict() of what torch.jit.load gives, "
                "or take the same weights as safetensors from a model hub"
            )
        elif "weights_only" in str(error).lower() or "unsupported" in str(error).lower():
            first = (
                "it holds more than tensors, and code in a checkpoint is never run: save "
                "model.state_dict() instead of the model"
            )
        raise UserError(f"{path}: cannot be read as plain tensors: {first}") from None


def _unwrap(value: Any, path: Path) -> tuple[Tensors, list[str], list[str]]:
    """The tensors inside the layers that training scripts put around them, which were taken where
    there was a choice, and what was around them."""
    taken, around = list[str](), list[str]()
    for _ in range(len(CONTAINERS)):  # a dictionary may hold itself
        if not isinstance(value, Mapping):
            break
        inner = [key for key in CONTAINERS if isinstance(value.get(key), Mapping)]
        inner = [key for key in inner if _holds_tensors(value[key])] or inner[:1]
        if not inner:
            tensors = {name: item for name, item in value.items() if isinstance(item, Tensor)}
            if not tensors:
                break
            return tensors, taken, around
        if len(inner) > 1:
            taken.append(f"read from its entry {inner[0]}, and not from {', '.join(inner[1:])}")
        others = [str(key) for key in value if key != inner[0]]
        beside = f", beside {', '.join(others[:6])}" if others else ""
        around.append(f"read from its entry {inner[0]}{beside}")
        value = value[inner[0]]
    raise UserError(f"{path}: no tensors by name in this file: expected a state dict")


def _holds_tensors(value: Mapping[Any, Any]) -> bool:
    """Whether a dictionary is one of tensors, or one around such."""
    around = (value.get(key) for key in CONTAINERS)
    return any(isinstance(one, Tensor) for one in value.values()) or any(
        isinstance(one, Mapping) for one in around
    )


def _flat(tensors: Tensors, path: Path) -> Tensors:
    """Plain tensors under plain names, whose memory is no more than the file can have filled."""
    if any(not isinstance(name, str) for name in tensors):
        raise UserError(f"{path}: a tensor's name is not a string: expected a state dict")
    for name, tensor in tensors.items():
        if tensor.layout is not torch.strided or tensor.is_meta or tensor.is_quantized:
            raise UserError(
                f"{path}: {name} is sparse, quantized or without values, not a plain tensor"
            )
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    if size > MAX_SHARED * path.stat().st_size:
        raise UserError(f"{path}: its tensors claim {size} bytes, more than the file holds")
    return {name: item.detach() for name, item in tensors.items()}


def _bare(tensors: Tensors) -> Tensors:
    """Names without what data parallelism, compiling or a training framework put before them
    all."""
    for prefix in PREFIXES:
        if tensors and all(name.startswith(prefix) for name in tensors):
            return _bare({name.removeprefix(prefix): item for name, item in tensors.items()})
    return tensors


def _prefix(tensors: Tensors, bare: Tensors) -> str:
    """What `_bare` took from before every name."""
    return next((old.removesuffix(new) for old, new in zip(tensors, bare, strict=True)), "")


def digest(file: Path) -> str:
    """The SHA-256 of a file, as manifests write it."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
