"""Mutants: a checkpoint broken at random or on purpose loads, or is refused in one line.

Every mutant is a function of its kind and number: `mutant(seeds, kind, number, scratch)` makes it
again. Mutants of foreign files in which the bytes of tensors alone changed load, as they should:
nothing in them vouches for their numbers.
"""

import hashlib
import io
import json
import random
import resource
import shutil
import signal
import struct
import subprocess
import sys
import time
import traceback
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from torch import Tensor

from vitrail import UserError, create, load, save
from vitrail.weights.convert import convert
from vitrail.weights.dialects import DIALECTS
from vitrail.weights.files import read_tensors, write_tensors

SIDE = 32
ENDS: dict[str, Any] = {"image_size": SIDE, "num_classes": 3}
TINY: dict[str, Any] = {"dim": 16, "depth": 1, "heads": 2, "mlp_dim": 24, **ENDS}
STAGES: dict[str, Any] = {"dim": 16, "depths": (1, 2), "heads": (2, 2), "window_size": 4, **ENDS}
# A dialect writes the first of these that it can hold.
FLAVOURS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("vit_ti_16", TINY),
    ("vit_ti_16", {**TINY, "num_classes": 0}),
    ("vit_ti_16", {**TINY, "num_classes": 0, "layer_scale": 0.1}),
    ("vit_ti_16", {**TINY, "pool": "mean", "final_norm": "pooled"}),
    (
        "vit_ti_16",
        {**TINY, "embed_norm": True, "patch_bias": False, "head_bias": False, "norm_eps": 1e-5},
    ),
    ("vit_ti_16", {**TINY, "embed_norm": True, "patch_bias": False, "num_classes": 0}),
    ("vit_ti_16", {**TINY, "qkv_bias": "none", "patch_norm": True, "norm_eps": 1e-5}),
    (
        "vit_ti_16",
        {
            **TINY,
            "dim": 128,
            "mlp_dim": 512,
            "embed_norm": True,
            "patch_bias": False,
            "head_bias": False,
            "norm_eps": 1e-5,
            "activation": "quick_gelu",
        },
    ),
    ("deit_ti_16_distilled", TINY),
    ("dinov2_s_14", {**TINY, "patch_size": 16, "mlp_dim": 64, "num_classes": 0}),
    ("dinov2_s_14_reg", {**TINY, "patch_size": 16, "mlp_dim": 64, "num_classes": 0}),
    ("beit_b_16", TINY),
    ("swin_t", STAGES),
    ("swinv2_t", STAGES),
    (
        "mobilevit_xxs",
        {"stem": 8, "widths": (8,) * 5, "dims": (8,) * 3, "heads": 2, "last": 8, **ENDS},
    ),
    (
        "mobilevitv2_050",
        {"stem": 16, "widths": (16, 16, 32, 48, 64), "dims": (8, 16, 24), **ENDS},
    ),
    (
        "coatnet_0",
        {"stem": (8, 8), "dims": (8, 8, 32, 32), "depths": (1,) * 4, "dim_head": 16, **ENDS},
    ),
    ("resnet18", {"width": 64, "depths": (1,) * 4, "num_classes": 3, "image_size": SIDE}),
    ("bit_r50x1", {"width": 32, "depths": (1,) * 2, **ENDS}),
    (
        "mobilenet_v2",
        {"stem": 8, "widths": (8,) * 7, "last": 8, **ENDS},
    ),
    ("dalle_encoder", {"width": 64, "depth": 1, "words": 512, "image_size": SIDE}),
)
# What a bare file of a family leaves open.
SAID: dict[str, dict[str, Any]] = {
    "vit": {"heads": 2, "image_size": SIDE},
    "beit": {},
    "swin": {},
    "swinv2": {"window_size": 4},
    "mobilevit": {"heads": 2, "image_size": SIDE},
    "mobilevitv2": {"image_size": SIDE},
    "coatnet": {},
    "resnet": {"image_size": SIDE},
    "bit": {"image_size": SIDE},
    "mobilenetv2": {"image_size": SIDE},
    "tokenizer": {"image_size": SIDE},
}
# What no dialect holds, our own format does.
NATIVE: dict[str, tuple[str, dict[str, Any]]] = {
    "native hybrid": ("vit_r_ti_16", {}),
    "native sincos2d": (
        "vit_ti_16",
        {"positions": "sincos2d", "class_token": False, "pool": "mean"},
    ),
    "native relative": ("vit_ti_16", {"positions": "relative", "head": "pretrain"}),
    "native learned2d": ("vit_ti_16", {"positions": "learned2d", "pool": "all", "registers": 2}),
    "native distilled": ("deit_ti_16_distilled", {"layer_scale": 0.1, "activation": "swiglu"}),
}
SECONDS = 20  # no file of this size may take longer

Draw = random.Random


def make_seeds(directory: Path) -> dict[str, Path]:
    """A whole checkpoint of every kind, to be broken: native, every dialect, every format."""
    torch.manual_seed(0)
    seeds: dict[str, Path] = {}
    for number, (variant, flavour) in enumerate(FLAVOURS):
        model = create(variant, **flavour)
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter)
        native = save(model, directory / f"native{number}")
        for dialect in DIALECTS:
            if dialect.reason_unsupported(model.config) or dialect.name in seeds:
                continue
            seeds[dialect.name] = directory / f"{dialect.name}{dialect.suffix}"
            convert(native, seeds[dialect.name], to=dialect.name)
            if dialect.sidecars(model.passport, model.config):
                seeds[f"{dialect.name} directory"] = directory / f"{dialect.name}-directory"
                convert(native, seeds[f"{dialect.name} directory"], to=dialect.name)
    seeds["native"] = directory / "native0"
    for name, (variant, flavour) in NATIVE.items():
        seeds[name] = save(create(variant, **TINY | flavour), directory / name)
    state = read_tensors(seeds["timm"])
    convert(seeds["native"], directory / "plain.pth", to="timm")
    convert(seeds["native"], directory / "plain.npz", to="timm")
    torch.save({"model": state}, directory / "old.pth", _use_new_zipfile_serialization=False)
    seeds |= {"pth": directory / "plain.pth", "npz": directory / "plain.npz"}
    seeds["legacy pth"] = directory / "old.pth"
    seeds["shards"] = shards(seeds["timm"], directory / "shards")
    return seeds


def said_of(kind: str) -> dict[str, Any]:
    """What a person has to say of a seed."""
    if kind.startswith("native"):
        return {}
    families = {dialect.name: dialect.family for dialect in DIALECTS}
    return SAID[families.get(kind.removesuffix(" directory"), "vit")]


def shards(source: Path, directory: Path) -> Path:
    directory.mkdir()
    tensors = read_tensors(source)
    names = {name: f"model-{number % 2}.safetensors" for number, name in enumerate(tensors)}
    for shard in set(names.values()):
        part = {name: tensor for name, tensor in tensors.items() if names[name] == shard}
        write_tensors(part, directory / shard)
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    return directory


# what can be done to bytes


def flip(draw: Draw, data: bytes) -> bytes:
    broken = bytearray(data)
    for _ in range(draw.choice([1, 1, 2, 8, 64])):
        broken[draw.randrange(len(broken))] = draw.randrange(256)
    return bytes(broken)


def flip_early(draw: Draw, data: bytes) -> bytes:
    """Where the headers are."""
    head = draw.choice([16, 256, 4096])
    return flip(draw, data[:head]) + data[head:]


def truncate(draw: Draw, data: bytes) -> bytes:
    return data[: draw.randrange(len(data))]


def insert(draw: Draw, data: bytes) -> bytes:
    place = draw.randrange(len(data))
    return data[:place] + draw.randbytes(draw.choice([1, 2, 8, 100])) + data[place:]


def delete(draw: Draw, data: bytes) -> bytes:
    place = draw.randrange(len(data))
    return data[:place] + data[place + draw.choice([1, 2, 8, 100]) :]


def splice(draw: Draw, data: bytes) -> bytes:
    """A piece of it somewhere else."""
    length, source, target = (
        draw.randrange(1, 200),
        draw.randrange(len(data)),
        draw.randrange(len(data)),
    )
    return data[:target] + data[source : source + length] + data[target + length :]


BYTES = (flip, flip_early, truncate, insert, delete, splice)


# what can be done to formats

HOSTILE: tuple[Callable[[], Any], ...] = (
    *(lambda value=value: value for value in (None, True, False, "", "x", "\ud800", "../x")),
    *(lambda value=value: value for value in (0, 1, 3, -1, 7919, 2**31, 2**63, 10**30, 10**400)),
    *(lambda value=value: value for value in (0.5, 1e308, 1e-308, float("nan"), float("inf"))),
    *(lambda value=value: value for value in ("a\nb\x1b[0m", "9" * 5000, "y" * 100_000)),
    *(lambda value=value: value for value in ("swiglu", "relative", "sincos2d", "learned2d")),
    *(lambda value=value: list(value) for value in ((), (1,), (1, 2, 3), (16, 16), (2**40,) * 2)),
    *(lambda levels=levels: deep(levels) for levels in (2, 100, 900)),
    dict,
    lambda: list(range(5000)),
    lambda: {"a": deep(300)},
    lambda: {"blocks": [10**6]},
    lambda: {"blocks": [3, 4, 9]},
)


def deep(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) in a JSON value."""
    found: list[tuple[Any, Any]] = []
    left = [value]
    while left:
        here = left.pop()
        keys = here.keys() if isinstance(here, dict) else range(len(here))
        found += [(here, key) for key in keys]
        left += [here[key] for key in keys if isinstance(here[key], dict | list)]
    return found


def mutate_json(draw: Draw, value: Any) -> Any:
    for _ in range(draw.choice([1, 1, 1, 2, 5])):
        known = places(value)
        if not known:
            return draw.choice(HOSTILE)()
        container, key = draw.choice(known)
        match draw.randrange(8):
            case 0 if isinstance(container, dict):
                del container[key]
            case 1 if isinstance(container, dict):
                container[draw.choice(["", "x", "a\nb", "dim", str(key) + "s"])] = container.pop(
                    key
                )
            case 2:
                other, place = draw.choice(known)
                container[key] = json.loads(dump(other[place], b"0 "))
            case 3 if isinstance(container[key], int):
                container[key] += draw.choice([-1, 1, 16, 1000])
            case _:
                container[key] = draw.choice(HOSTILE)()
    return value


def dump(value: Any, fallback: bytes) -> bytes:
    try:
        return json.dumps(value).encode()
    except (ValueError, RecursionError):  # too deep to be written
        return fallback[:-1]


def json_aware(draw: Draw, data: bytes) -> bytes:
    value = json.loads(data)
    if "vitrail" in value and draw.random() < 0.9:  # the rest is for others to read
        value["vitrail"] = mutate_json(draw, value["vitrail"])
        return dump(value, data)
    return dump(mutate_json(draw, value), data)


DTYPES = (
    "F64",
    "F32",
    "F16",
    "BF16",
    "I64",
    "U8",
    "BOOL",
    "F8_E4M3",
    "F4",
    "C64",
    "X",
    "",
    None,
    3,
)


def header_aware(draw: Draw, data: bytes) -> bytes:
    """A safetensors header that parses, but lies."""
    (length,) = struct.unpack("<Q", data[:8])
    header, body = json.loads(data[8 : 8 + length]), data[8 + length :]
    name = draw.choice(list(header))
    entry = header[name]
    match draw.randrange(8):
        case 0:
            entry["dtype"] = draw.choice(DTYPES)
        case 1 if "shape" in entry:
            draw.shuffle(entry["shape"])
        case 2 if "shape" in entry:
            entry["shape"] = [1, *entry["shape"]] if draw.random() < 0.5 else [*entry["shape"], 1]
        case 3 if "shape" in entry:
            size = entry["data_offsets"][1] - entry["data_offsets"][0]
            entry["shape"] = draw.choice([[size // 4], [], [0], [size // 8, 2], [2, size // 8]])
        case 4 if "shape" in entry:
            other = draw.choice([key for key in header if "shape" in header[key]])
            header[name], header[other] = header[other], entry
        case 5:
            header[draw.choice(["", "x", "head.weight", "mask_token", name + ".x"])] = header.pop(
                name
            )
        case 6:
            del header[name]
            kept = [key for key in header if "shape" in header[key]]
            body = repack(header, kept, body)
        case _:
            mutate_json(draw, entry)
    text = dump(header, data[8 : 8 + length])
    return struct.pack("<Q", len(text)) + text + body


def repack(header: dict[str, Any], names: list[str], body: bytes) -> bytes:
    """The offsets without a gap, so that a file with a tensor less is whole again."""
    parts, start = [], 0
    for name in names:
        first, last = header[name]["data_offsets"]
        parts.append(body[first:last])
        header[name]["data_offsets"] = [start, start + last - first]
        start += last - first
    return b"".join(parts)


def zip_aware(draw: Draw, data: bytes) -> bytes:
    """One member of an npz or a pth broken, in an archive whose checksums are right."""
    source, target = zipfile.ZipFile(io.BytesIO(data)), io.BytesIO()
    members = source.infolist()
    pickles = [member for member in members if member.filename.endswith(".pkl")]
    victim = draw.choice(pickles if pickles and draw.random() < 0.8 else members).filename
    method = draw.choice([zipfile.ZIP_STORED, zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
    with warnings.catch_warnings(), zipfile.ZipFile(target, "w", method) as archive:
        warnings.simplefilter("ignore")  # the same name twice
        for member in members:
            content, name = source.read(member), member.filename
            if name == victim and content:
                tool = draw.choice(BYTES)
                head = 130 if draw.random() < 0.7 else len(content)  # an array's header
                content = tool(draw, content[:head]) + content[head:]
            if name == victim and draw.random() < 0.1:
                name = draw.choice(["x", "x/", members[0].filename, name + "\n"])
            if name != victim or draw.random() < 0.95:
                archive.writestr(name, content)
    return target.getvalue()


def reshaped(draw: Draw, tensor: Tensor) -> Any:
    """The tensor with another shape, or something else in its place."""
    tensor = tensor if tensor.ndim else tensor[None]
    match draw.randrange(9):
        case 0:
            return tensor.to(
                draw.choice([torch.float16, torch.bfloat16, torch.float64, torch.int8])
            )
        case 1:
            return tensor.flatten()
        case 2:
            return tensor[None]
        case 3:
            return tensor.repeat(2, *[1] * (tensor.ndim - 1))
        case 4:
            return tensor[:0]
        case 5:
            return tensor[:1].clone()
        case 6:
            return tensor.mT.contiguous() if tensor.ndim > 1 else torch.tensor(1.0)
        case 7:
            return torch.zeros(draw.choice([(1,), (16,), (1, 5, 16), (16, 3, 16, 16), (48, 16)]))
        case _:
            value = draw.choice([0.0, float("nan"), float("inf"), 1e38])
            return torch.full(tensor.shape, value)


def tensor_aware(draw: Draw, path: Path) -> None:
    """A file that is whole, but whose tensors are not what a model needs."""
    tensors: dict[str, Any] = dict(read_tensors(path))
    for _ in range(draw.choice([1, 1, 2, 4])):
        name = draw.choice(list(tensors))
        match draw.randrange(6):
            case 0:
                del tensors[name]
            case 1:
                others = [name.replace("0", "1"), f"module.{name}", f"backbone.{name}", "x", ""]
                others += ["mask_token", "head.weight", "register_tokens", "decoder_embed.weight"]
                tensors[draw.choice(others)] = tensors.pop(name)
            case 2:
                other = draw.choice(list(tensors))
                tensors[name], tensors[other] = tensors[other], tensors[name]
            case _:
                tensors[name] = reshaped(draw, tensors[name])
        if not tensors:
            break
    if path.suffix == ".pth" and draw.random() < 0.5:
        torch.save(strange(draw, tensors), path)
    else:
        write_tensors(tensors, path)


def strange(draw: Draw, tensors: dict[Any, Any]) -> Any:
    """What a pickle can hold and no other format can."""
    swollen = torch.zeros(1, 1, 1).expand(10**4, 10**4, 10**4)
    meta, sparse = torch.zeros(16, device="meta"), torch.eye(16).to_sparse()
    parameter = torch.nn.Parameter(torch.zeros(16))
    name = draw.choice([*tensors, "x", 3, ("a",), None, b"bytes"])
    values = (None, 3, "text", [parameter], {"a": swollen}, swollen, meta, sparse, parameter)
    tensors = {**tensors, name: draw.choice(values)}
    return draw.choice([tensors, {"model": tensors}, {"state_dict": {"model": tensors}}, [tensors]])


def tools(path: Path) -> list[Callable[[Draw, bytes], bytes]]:
    """What suits a file: the formats' own tools more often than bare bytes."""
    if path.suffix == ".json":
        return [*BYTES, *[json_aware] * 12]
    if path.suffix == ".safetensors":
        return [*BYTES, *[header_aware] * 12]
    if zipfile.is_zipfile(path):
        return [*BYTES, *[zip_aware] * 12]
    return list(BYTES)


def mutant(seeds: dict[str, Path], kind: str, number: int, scratch: Path) -> Path:
    """A broken copy of a seed."""
    draw = random.Random(f"{kind} {number}")
    seed, path = seeds[kind], scratch / seeds[kind].name
    if seed.is_dir():
        shutil.copytree(seed, path)
        files = sorted(file for file in path.iterdir() if file.name != "README.md")
    else:
        files = [Path(shutil.copy(seed, path))]
    for file in draw.sample(files, k=min(len(files), draw.choice([1, 1, 1, 2]))):
        if file.suffix != ".json" and draw.random() < 0.3:
            tensor_aware(draw, file)
        else:
            file.write_bytes(draw.choice(tools(file))(draw, file.read_bytes()))
    if (path / "manifest.json").exists() and draw.random() < 0.8:
        sign(path)
    return path


def sign(directory: Path) -> None:
    """A manifest that vouches for what is there now: harm is done with care."""
    names = ("config.json", "model.safetensors")
    files = {name: hashlib.sha256((directory / name).read_bytes()).hexdigest() for name in names}
    (directory / "manifest.json").write_text(json.dumps({"format": 1, "files": files}))


# the judge


class TooSlow(BaseException):
    """No `Exception`, so that no reader takes it for damage."""


def too_slow(signal_number: int, frame: FrameType | None) -> None:
    raise TooSlow


WATCHED = {
    "os.system", "os.exec", "os.posix_spawn", "subprocess.Popen", "socket.connect",
    "os.remove", "os.rename", "os.mkdir", "shutil.rmtree", "ctypes.dlopen",
}  # fmt: skip


class Watch:
    """What Python does to the world while it is on; an audit hook cannot be taken out again."""

    def __init__(self) -> None:
        self.on, self.seen = False, list[str]()
        sys.addaudithook(self.hear)

    def hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.on:
            return
        if event == "open":
            _, mode, flags = arguments
            writes = set(mode or "") & set("wax+") or (isinstance(flags, int) and flags & 0o3)
            if not writes:
                return
        elif event not in WATCHED:
            return
        self.seen.append(f"{event} {arguments[:1]}")


@cache
def the_watch() -> Watch:
    """One for all mutants, and none before the first: Python calls it for every `id()`, so it
    makes all tests slower."""
    return Watch()


def judge(path: Path, said: dict[str, Any], draw: Draw, watch: Watch) -> str:
    """ "loaded" or "refused"; anything else is an error of ours."""
    if draw.random() < 0.2:
        said = said | {"image_size": 64, "num_classes": 5}
    before = {file: file.stat().st_mtime_ns for file in path.parent.rglob("*")}
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    watch.on, sentence = True, ""
    try:
        load(path, **said)
    except UserError as error:
        sentence = str(error) or "nothing"
    finally:
        watch.on = False
        signal.setitimer(signal.ITIMER_REAL, 0)
    assert sentence.isprintable()
    assert not sentence or 10 < len(sentence) < 3000
    assert not watch.seen, watch.seen
    assert before == {file: file.stat().st_mtime_ns for file in path.parent.rglob("*")}
    return "refused" if sentence else "loaded"


def fuzz(seeds: dict[str, Path], directory: Path, numbers: range) -> tuple[Counter[str], list[str]]:
    """Outcomes, and a report of each mutant that was neither loaded nor refused."""
    watch, scratch = the_watch(), directory / "scratch"
    outcomes, reports = Counter[str](), list[str]()
    previous = signal.signal(signal.SIGALRM, too_slow)
    kinds = sorted(seeds)
    for number in numbers:
        kind = kinds[number % len(kinds)]
        scratch.mkdir()
        path = mutant(seeds, kind, number, scratch)
        try:
            outcome = judge(path, said_of(kind), random.Random(number), watch)
            outcomes[outcome] += 1
            outcomes[f"{kind}: {outcome}"] += 1
        except (Exception, TooSlow):
            reports.append(f"mutant {number} of {kind}:\n{traceback.format_exc(limit=-6)}")
            watch.seen.clear()
        shutil.rmtree(scratch)
    signal.signal(signal.SIGALRM, previous)
    return outcomes, reports


@pytest.fixture(scope="module")
def seeds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return make_seeds(tmp_path_factory.mktemp("seeds"))


@pytest.mark.slow
def test_whole_seeds_load(seeds: dict[str, Path]) -> None:
    """Or mutants of them would prove nothing."""
    assert {dialect.name for dialect in DIALECTS} <= seeds.keys()
    for kind, path in seeds.items():
        load(path, **said_of(kind))


@pytest.mark.slow
def test_mutants(seeds: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    outcomes, reports = fuzz(seeds, tmp_path, range(150))
    assert not reports, "\n".join(reports[:3])
    assert outcomes["loaded"] > 7
    assert outcomes["refused"] > 75
    assert list((tmp_path / "here").iterdir()) == []


@pytest.mark.slow
def test_many_mutants(tmp_path: Path) -> None:
    """In a process of its own, with no more memory than it needs."""
    command = [sys.executable, "-m", "tests.weights.test_fuzz", str(tmp_path), "1000", "11000"]
    root = Path(__file__).parents[2]
    result = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    print(result.stdout)
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-4000:]


def main(directory: str, first: str, last: str) -> int:
    """Mutants of these numbers, with two gigabytes of memory beyond what the libraries take."""
    if Path("/proc/self/statm").exists():  # elsewhere nobody tells how much they take
        taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (taken + 2 * 2**30, taken + 2 * 2**30))
    start = time.monotonic()
    (Path(directory) / "seeds").mkdir()
    seeds = make_seeds(Path(directory) / "seeds")
    outcomes, reports = fuzz(seeds, Path(directory), range(int(first), int(last)))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    for name, count in sorted(outcomes.items()):
        print(f"{count:6} {name}")
    print(f"{time.monotonic() - start:.0f} s, at most {peak:.0f} MB")
    print(f"{len(reports)} neither:", *reports[:20], sep="\n\n")
    return bool(reports)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
