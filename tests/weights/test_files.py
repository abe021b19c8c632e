"""Every format as it is met, and every way a file can be broken or mean harm: one sentence each."""

import io
import json
import os
import pickle
import struct
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from vitrail import UserError, create, load, save
from vitrail.weights.convert import convert
from vitrail.weights.files import MAX_JSON, read_foreign, read_json, read_tensors, write_tensors
from vitrail.weights.load import open_checkpoint

TINY: dict[str, Any] = {
    "dim": 16, "depth": 1, "heads": 2, "mlp_dim": 24, "image_size": (32, 48), "num_classes": 3,
}  # fmt: skip
SAID: dict[str, Any] = {"heads": 2, "image_size": (32, 48)}
State = dict[str, Tensor]


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> State:
    """A whole model under timm's names."""
    directory = tmp_path_factory.mktemp("model")
    model = create("vit_ti_16", **TINY)
    for parameter in model.parameters():
        nn.init.normal_(parameter)
    save(model, directory / "native")
    convert(directory / "native", directory / "model.safetensors", to="timm")
    return load_file(directory / "model.safetensors")


def assert_equal(one: State, other: State) -> None:
    assert one.keys() == other.keys()
    for name in one:
        assert one[name].dtype is other[name].dtype
        assert torch.equal(one[name], other[name])


def refused(path: Path, because: str, **arguments: Any) -> str:
    """The one sentence by which `load` and `convert` refuse a path; nothing is written."""
    before = sorted(path.parent.rglob("*"))
    with pytest.raises(UserError, match=because) as caught:
        load(path, **arguments)
    sentence = str(caught.value)
    assert sentence.isprintable()
    assert len(sentence) < 1000
    with pytest.raises(UserError, match=because):
        convert(path, path.parent / "out", to="vitrail", changes=arguments)
    assert sorted(path.parent.rglob("*")) == before
    return sentence


# formats


def test_safetensors(state: State, tmp_path: Path) -> None:
    save_file(state, tmp_path / "model.safetensors")
    assert_equal(read_tensors(tmp_path / "model.safetensors"), state)


def write_shards(state: State, directory: Path, suffix: str = "safetensors") -> Path:
    """Three shards and their index, as model hubs cut a big file."""
    directory.mkdir(exist_ok=True)
    stem = "model" if suffix == "safetensors" else "pytorch_model"
    places: dict[str, str] = {}
    for number, names in enumerate(np.array_split(list(state), 3), start=1):
        shard = f"{stem}-{number:05}-of-00003.{suffix}"
        places |= dict.fromkeys(map(str, names), shard)
        write_tensors({str(name): state[name] for name in names}, directory / shard)
    index = directory / f"{stem}.{suffix}.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": places}))
    return index


@pytest.mark.parametrize("suffix", ["safetensors", "bin"])
def test_shards(suffix: str, state: State, tmp_path: Path) -> None:
    index = write_shards(state, tmp_path / "model", suffix)
    assert_equal(read_tensors(index), state)
    assert_equal(dict(read_foreign(tmp_path / "model").tensors), state)
    load(tmp_path / "model", **SAID)


@pytest.mark.parametrize("write", [np.savez, np.savez_compressed])
def test_npz(write: Callable[..., None], state: State, tmp_path: Path) -> None:
    write(tmp_path / "model.npz", **{name: tensor.numpy() for name, tensor in state.items()})
    assert_equal(read_tensors(tmp_path / "model.npz"), state)


@pytest.mark.parametrize(
    "array",
    [
        np.asfortranarray(np.arange(12.0).reshape(3, 4)),
        np.arange(12, dtype=">f4").reshape(3, 4),
        np.asfortranarray(np.arange(12, dtype=">f8").reshape(2, 3, 2)),
        np.arange(12, dtype=np.float16),
        np.array(3.5),
        np.zeros((0, 3)),
        np.arange(3),
    ],
    ids=["fortran", "big-endian", "both", "float16", "a number", "nothing", "integers"],
)
def test_npz_arrays(array: np.ndarray[Any, Any], tmp_path: Path) -> None:
    np.savez(tmp_path / "model.npz", one=array)
    (tensor,) = read_tensors(tmp_path / "model.npz").values()
    assert tuple(tensor.shape) == array.shape
    np.testing.assert_array_equal(tensor.numpy(), array)
    tensor += 1  # memory of its own, to be written to


def test_npz_bfloat16(tmp_path: Path) -> None:
    """numpy has none, so JAX's arrays arrive as two raw bytes each."""
    values = torch.randn(3, 5).bfloat16()
    raw = values.view(torch.int16).numpy().view("V2")
    np.savez(tmp_path / "model.npz", one=raw)
    assert torch.equal(read_tensors(tmp_path / "model.npz")["one"], values.float())


@pytest.mark.sampled(2)
@pytest.mark.parametrize("suffix", [".pth", ".pt", ".bin", ".ckpt", ".tar"])
@pytest.mark.parametrize(
    "wrap",
    [
        lambda state: state,
        OrderedDict,
        lambda state: {"model": state, "epoch": 3, "optimizer": {"lr": 0.1}},
        lambda state: {"state_dict": state},
        lambda state: {"state_dict": {"model": state}, "loss": torch.tensor(0.5)},
        lambda state: {f"module.{name}": tensor for name, tensor in state.items()},
        lambda state: {name: nn.Parameter(tensor) for name, tensor in state.items()},
    ],
    ids=["plain", "ordered", "model", "state_dict", "both", "DataParallel", "parameters"],
)
def test_pickles(wrap: Callable[[State], Any], suffix: str, state: State, tmp_path: Path) -> None:
    torch.save(wrap(state), tmp_path / f"model{suffix}")
    assert_equal(read_tensors(tmp_path / f"model{suffix}"), state)


def test_a_legacy_pickle(state: State, tmp_path: Path) -> None:
    torch.save(state, tmp_path / "old.pth", _use_new_zipfile_serialization=False)
    assert_equal(read_tensors(tmp_path / "old.pth"), state)


@pytest.mark.parametrize("suffix", [".safetensors", ".npz", ".pth"])
def test_what_is_written_is_read(suffix: str, state: State, tmp_path: Path) -> None:
    write_tensors(state, tmp_path / f"model{suffix}")
    assert_equal(read_tensors(tmp_path / f"model{suffix}"), state)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "name", ["model.safetensors", "pytorch_model.bin", "model.pth", "B_16.npz"]
)
def test_directories(name: str, state: State, tmp_path: Path) -> None:
    write_tensors(state, tmp_path / name)
    (tmp_path / "README.md").write_text("a model")
    assert_equal(read_foreign(tmp_path).tensors, state)
    alone = load(tmp_path / name, **SAID).state_dict()
    assert_equal(dict(load(tmp_path, **SAID).state_dict()), dict(alone))


@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
def test_the_same_tensors_are_the_same_bytes(suffix: str, state: State, tmp_path: Path) -> None:
    one, other = (tmp_path / f"{name}{suffix}" for name in ("one", "another"))
    write_tensors(state, one)
    write_tensors(state, other)
    assert one.read_bytes() == other.read_bytes()


def test_a_config_speaks_for_its_own_directory_alone(state: State, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_args": {"num_heads": 8}}))
    save_file(state, tmp_path / "another.safetensors")
    assert read_foreign(tmp_path / "another.safetensors").sidecars == {}
    save_file(state, tmp_path / "model.safetensors")
    assert read_foreign(tmp_path / "model.safetensors").sidecars.keys() == {"config.json"}
    assert read_foreign(tmp_path).sidecars.keys() == {"config.json"}


def test_tensors_that_share_memory(state: State, tmp_path: Path) -> None:
    """Tied weights are two weights here: they load, and each is written for itself."""
    tied = state | {"head.bias": state["norm.bias"][:3]}
    tied["blocks.0.norm2.weight"] = tied["blocks.0.norm1.weight"]
    torch.save(tied, tmp_path / "tied.pth")
    for out in ("out.safetensors", "out.npz", "out.pth"):
        convert(tmp_path / "tied.pth", tmp_path / out, to="timm", changes=SAID)
        assert_equal(read_tensors(tmp_path / out), tied)


def test_a_part_of_something_bigger_is_written_alone(state: State, tmp_path: Path) -> None:
    big = torch.randn(10_000)
    write_tensors(state | {"head.bias": big[:3]}, tmp_path / "out.pth")
    write_tensors(state | {"head.bias": big[:3].clone()}, tmp_path / "same.pth")
    assert (tmp_path / "out.pth").stat().st_size < (tmp_path / "same.pth").stat().st_size + 1000


# broken and hostile


@pytest.mark.parametrize("suffix", [".safetensors", ".npz", ".pth", ".bin"])
@pytest.mark.parametrize(
    "damage",
    [
        lambda whole: whole[: len(whole) // 2],
        lambda whole: whole[:-1],
        lambda whole: b"",
        lambda whole: b"this is a text, not a checkpoint\n" * 10,
        lambda whole: whole[100:],
    ],
    ids=["half", "but for one byte", "empty", "a text", "without its head"],
)
def test_a_damaged_file(
    damage: Callable[[bytes], bytes], suffix: str, state: State, tmp_path: Path
) -> None:
    path = tmp_path / f"model{suffix}"
    write_tensors(state, path)
    path.write_bytes(damage(path.read_bytes()))
    refused(path, "cannot be read")


def test_no_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    refused(
        tmp_path / "empty", "no checkpoint in this directory: expected one of model.safetensors"
    )
    refused(tmp_path / "nothing", "no such file or directory")
    (tmp_path / "model.onnx").write_bytes(b"x")
    refused(tmp_path / "model.onnx", r"unknown format '\.onnx', expected \.safetensors")
    with pytest.raises(UserError, match="no such file or directory"):
        load("a" * 5000)
    with pytest.raises(UserError, match="no such file or directory"):
        load("nul\0byte")


def test_several_loose_files_are_not_guessed(state: State, tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    for name in ("one.npz", "two.npz"):
        write_tensors(state, tmp_path / "models" / name)
    refused(tmp_path / "models", "no checkpoint in this directory")


def test_a_shard_that_is_missing(state: State, tmp_path: Path) -> None:
    write_shards(state, tmp_path / "model")
    (tmp_path / "model" / "model-00002-of-00003.safetensors").unlink()
    refused(tmp_path / "model", r"shard model-00002-of-00003\.safetensors is missing beside it")


@pytest.mark.parametrize(
    "shard",
    [
        "../secret.safetensors",
        "/etc/passwd",
        "..",
        "",
        "model.safetensors.index.json",  # the index itself
        "deeper/model.safetensors",
        "model.safetensors\nand more",
        "model.exe",
    ],
)
def test_a_shard_leads_nowhere_else(shard: str, state: State, tmp_path: Path) -> None:
    index = write_shards(state, tmp_path / "model")
    save_file(state, tmp_path / "secret.safetensors")
    places = dict.fromkeys(state, shard)
    index.write_text(json.dumps({"weight_map": places}))
    refused(tmp_path / "model", "is not the plain name of a file of tensors")


@pytest.mark.parametrize(
    ("places", "because"),
    [
        (None, "expected a weight_map"),
        ([], "expected a weight_map"),
        ({"a": 3}, "expected a weight_map"),
        ({"new": "model-00001-of-00003.safetensors"}, "the shards lack new and 0 more tensors"),
    ],
)
def test_a_wrong_index(places: Any, because: str, state: State, tmp_path: Path) -> None:
    index = write_shards(state, tmp_path / "model")
    index.write_text(json.dumps({"weight_map": places}))
    refused(tmp_path / "model", because)


class Touch:
    """What unpickling would run: os.system("touch PATH")."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.path}",)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("suffix", [".pth", ".bin", ".pt", ".ckpt", ".tar"])
@pytest.mark.parametrize("new", [True, False], ids=["zip", "legacy"])
def test_code_in_a_pickle_never_runs(suffix: str, new: bool, state: State, tmp_path: Path) -> None:
    proof, path = tmp_path / "it-ran", tmp_path / f"model{suffix}"
    harm = {"model": state, "extra": Touch(proof)}
    torch.save(harm, path, _use_new_zipfile_serialization=new)
    refused(path, "it holds more than tensors, and code in a checkpoint is never run", **SAID)
    path.write_bytes(pickle.dumps(Touch(proof)))
    refused(path, "cannot be read as plain tensors")
    assert not proof.exists()


def test_code_in_an_array_never_runs(tmp_path: Path) -> None:
    proof = tmp_path / "it-ran"
    np.savez(tmp_path / "model.npz", one=np.array([Touch(proof)], dtype=object))
    refused(tmp_path / "model.npz", r"one\.npy holds object, not plain numbers")
    assert not proof.exists()


NO_NUMBERS = {
    "text": np.array(["text"]),
    "complex": np.array([1j]),
    "raw": np.zeros(1, "V3"),
    "records": np.zeros(1, "f4,i4"),
    "dates": np.zeros(1, "M8[s]"),
}


@pytest.mark.parametrize("array", NO_NUMBERS.values(), ids=NO_NUMBERS)
def test_an_array_of_no_numbers(array: np.ndarray[Any, Any], tmp_path: Path) -> None:
    np.savez(tmp_path / "model.npz", one=array)
    refused(tmp_path / "model.npz", "not plain numbers")


def npz_of(path: Path, header: bytes, data: bytes = b"", **sizes: int) -> Path:
    """An npz of one stored array with this header, whose directory may lie about sizes."""
    text = header + b" " * (63 - (10 + len(header)) % 64) + b"\n"
    npy = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + data
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("one.npy", npy)
        for name, size in sizes.items():
            setattr(archive.infolist()[0], name, size)
    return path


def described(shape: str, kind: str = "<f4") -> bytes:
    return f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}".encode()


@pytest.mark.parametrize(
    ("header", "because"),
    [
        (described("(25000000000,)"), "too short for that"),
        (described("(99999999999999999999999999,)"), "too short for that"),
        (described("(-1,)"), "has the shape"),
        (described("(2, -3)"), "has the shape"),
        (described("(0, 99999999999999999999999999)"), "cannot be read"),
        (described("(3)"), "cannot be read"),
        (described("(3,)", "O"), "not plain numbers"),
        (described("(3,)", "nonsense"), "cannot be read"),
        (b"__import__('os').abort()", "cannot be read"),
        (b"{" * 500, "cannot be read"),
        (b"", "cannot be read"),
    ],
)
def test_a_header_that_lies(header: bytes, because: str, tmp_path: Path) -> None:
    refused(npz_of(tmp_path / "model.npz", header, bytes(64)), because)


@pytest.mark.slow
def test_a_zip_bomb(tmp_path: Path) -> None:
    """A small file that claims 100 GB, packed and unpacked, in a directory entry or for real."""
    header = described("(25000000000,)")
    lies = {"file_size": 10**11, "compress_size": 10**11}
    refused(npz_of(tmp_path / "model.npz", header, bytes(64), **lies), "packed bytes, but has")
    lies = {"file_size": 10**11}
    refused(npz_of(tmp_path / "model.npz", header, bytes(64), **lies), "are no checkpoint")
    with zipfile.ZipFile(tmp_path / "real.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        for number in range(17):
            archive.writestr(f"{number}.npy", bytes(2**24))
    refused(tmp_path / "real.npz", "are no checkpoint")
    (tmp_path / "real.pth").write_bytes((tmp_path / "real.npz").read_bytes())
    refused(tmp_path / "real.pth", "are no checkpoint")


def test_the_same_name_twice(tmp_path: Path) -> None:
    stream = io.BytesIO()
    np.save(stream, np.zeros(2))
    with zipfile.ZipFile(tmp_path / "model.npz", "w") as archive:
        archive.writestr("one.npy", stream.getvalue())
        archive.writestr("one", stream.getvalue())
    refused(tmp_path / "model.npz", "one is there twice")


def safetensors_of(path: Path, header: Any, data: bytes = b"", length: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)
    return path


@pytest.mark.parametrize(
    ("header", "length"),
    [
        ({}, 2**40),
        ({}, 2**63),
        ({"a": {"dtype": "F32", "shape": [10**12], "data_offsets": [0, 4 * 10**12]}}, None),
        ({"a": {"dtype": "F32", "shape": [2**62, 4], "data_offsets": [0, 0]}}, None),
        ({"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}, None),
        ({"a": {"dtype": "F33", "shape": [1], "data_offsets": [0, 4]}}, None),
        ({"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 0]}}, None),
        ({"a": {"dtype": "F32", "shape": [1], "data_offsets": [2, 6]}}, None),
        ({"a": 3}, None),
        ([], None),
        (b"{" * 1000, None),
        (b"[" * 100_000, None),
        (b"\xff\xfe", None),
    ],
)
def test_a_safetensors_header_that_lies(header: Any, length: int | None, tmp_path: Path) -> None:
    path = safetensors_of(tmp_path / "model.safetensors", header, bytes(8), length)
    refused(path, "cannot be read")


@pytest.mark.parametrize(
    "value",
    [
        {"model": {"model": {}}},
        [torch.zeros(2)],
        torch.zeros(2),
        {"epoch": 3},
        None,
        {"model": {"epoch": 3}},
    ],
)
def test_a_pickle_without_tensors_by_name(value: Any, tmp_path: Path) -> None:
    torch.save(value, tmp_path / "model.pth")
    refused(tmp_path / "model.pth", "no tensors by name in this file: expected a state dict")


def test_a_dictionary_that_holds_itself(tmp_path: Path) -> None:
    endless: dict[str, Any] = {}
    endless["model"] = endless
    torch.save(endless, tmp_path / "model.pth")
    refused(tmp_path / "model.pth", "no tensors by name in this file")


@pytest.mark.parametrize(
    ("tensors", "because"),
    [
        ({1: torch.zeros(2), 2: torch.zeros(2)}, "a tensor's name is not a string"),
        ({"a": torch.eye(3).to_sparse()}, "not a plain tensor"),
        ({"a": torch.zeros(2, device="meta")}, "not a plain tensor"),
        ({"a": torch.zeros(1).expand(10**12)}, "more than the file holds"),
        ({f"a{i}": torch.zeros(1).expand(10**5) for i in range(10)}, "more than the file holds"),
    ],
    ids=["numbers for names", "sparse", "without values", "swollen", "swollen together"],
)
def test_a_pickle_of_strange_tensors(
    tensors: dict[Any, Tensor], because: str, tmp_path: Path
) -> None:
    torch.save(tensors, tmp_path / "model.pth")
    refused(tmp_path / "model.pth", because)


@pytest.mark.parametrize("dtype", [torch.int8, torch.int64, torch.bool, torch.complex64])
@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
def test_weights_that_are_no_weights(
    dtype: torch.dtype, suffix: str, state: State, tmp_path: Path
) -> None:
    path = tmp_path / f"model{suffix}"
    write_tensors(state | {"norm.weight": state["norm.weight"].to(dtype)}, path)
    refused(path, f"norm.weight holds {dtype}, but weights are floating-point", **SAID)


def test_names_do_not_steer_the_terminal(state: State, tmp_path: Path) -> None:
    """What a file calls its tensors gets into the sentence; as text alone, and in one line."""
    save_file(state | {"\x1b[2J\nnorm": torch.zeros(1)}, tmp_path / "model.safetensors")
    sentence = refused(tmp_path / "model.safetensors", "no row reads", **SAID)
    assert r"\x1b[2J\nnorm" in sentence


@pytest.mark.parametrize(
    "text",
    [
        b'{"norm_eps": NaN}',
        b'{"norm_eps": Infinity}',
        b'{"norm_eps": -Infinity}',
        b'{"norm_eps": 1e999}',
        b'{"a": ' + b"9" * 5000 + b"}",
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"a": 1,}',
        b"",
        b"\xff\xfe{\x00}\x00",
        b"[1, 2]",
        b"3",
        b"null",
        b'{"a": "' + b"x" * MAX_JSON + b'"}',
    ],
    ids=lambda text: repr(text[:16]),
)
def test_a_wrong_sidecar(text: bytes, state: State, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    save_file(state, tmp_path / "model" / "model.safetensors")
    (tmp_path / "model" / "config.json").write_bytes(text)
    refused(tmp_path / "model", r"config\.json: (cannot be read|expected a JSON object)", **SAID)


def test_json(tmp_path: Path) -> None:
    value = {"a": [1, -2.5, 1e-300, "été", None, True], "b": {}}
    (tmp_path / "a.json").write_text(json.dumps(value), encoding="utf-8")
    assert read_json(tmp_path / "a.json") == value


def test_nothing_is_held_open(state: State, tmp_path: Path) -> None:
    """A file that was read may be replaced, and what was read stays as it was."""
    path = tmp_path / "model.safetensors"
    save_file(state, path)
    model = load(path, **SAID)
    path.write_bytes(bytes(path.stat().st_size))
    assert torch.equal(model.state_dict()["norm.weight"], state["norm.weight"])


def test_open_checkpoint_refuses_alike(state: State, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file or directory"):
        open_checkpoint(tmp_path / "nothing")
