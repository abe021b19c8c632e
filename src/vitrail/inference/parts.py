"""A directory of embeddings: Parquet parts, and a manifest that says of which model and how made.

    DIR/_manifest.json        what all parts have in common
    DIR/part-000000.parquet   id, embedding, problem; written under another name and renamed
    DIR/8f3c…_000004.parquet  the same, written by Ray, whose checkpoint tells that it is whole
    DIR/.ray/                 that checkpoint, and the list of names

Readers of Parquet pass over names that begin with a dot or a low line, so they can be given DIR.
"""

import json
import re
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from vitrail.core.errors import UserError, writing
from vitrail.core.json_text import utf8_name
from vitrail.core.records import validate
from vitrail.inference.arrow import Precision, pyarrow
from vitrail.inference.engine import OutputKind
from vitrail.inference.engines.catalogue import EAGER
from vitrail.weights.atomic import write_file

MANIFEST = "_manifest.json"
STATE = ".ray"
PENDING = ".pending.parquet"
CHECKPOINT = "checkpoint"
FORMAT = 1
PROBLEM, OLD_PROBLEM = "problem", "reason"  # the column, and what it was called before
LOCAL = "part-"
LOCAL_PART = re.compile(r"part-\d{6,}")
# Free to differ between runs into one directory; the digest tells whether it is the same model.
FREE = ("model", "loading")


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What decides embeddings, and where the model came from: `loading` is how `model` was loaded,
    and `model` is empty where it was given in memory."""

    model: str
    digest: str
    output: OutputKind
    shape: tuple[int, ...]
    precision: Precision
    exact: bool
    batch_size: int
    engine: str = EAGER
    merged_tokens: tuple[int, ...] = ()  # in each block; none where nothing was merged
    calibration: str = ""  # digest of the images that int8 was calibrated on; none for floats
    native_resolution: bool = False
    max_tokens: int | None = None  # at native resolution; None: as many as the model's grid has
    loading: dict[str, Any] = field(default_factory=dict)
    format: int = FORMAT


def open_parts(out: Path, manifest: Manifest) -> None:
    """Begin a directory, or make sure that it is one to resume."""
    check_parts(out, manifest)
    if not (out / MANIFEST).exists():
        manifest_text = json.dumps(asdict(manifest), indent=1)
        write_file(out / MANIFEST, lambda draft: _write(draft, manifest_text))


def check_parts(out: Path, manifest: Manifest) -> None:
    """Refuse a directory that holds something else, or embeddings made otherwise."""
    if utf8_name(str(out)) != str(out):  # pyarrow would not take it
        raise UserError(f"{out}: must be a name in UTF-8: choose another directory")
    if not (out / MANIFEST).exists():
        if out.is_dir() and any(out.iterdir()):
            raise UserError(f"{out}: holds something else already: choose another directory")
        return
    there, here = asdict(read_manifest(out)), asdict(manifest)
    for name, value in here.items():
        if name not in FREE and there[name] != value:
            if name == "digest":
                raise UserError(
                    f"{out}: holds embeddings of another model: choose another directory"
                )
            raise UserError(
                f"{out}: was made with {name} {there[name]}, not {value}: choose another directory"
            )


def _write(draft: Path, content: str) -> None:
    draft.write_text(content, encoding="utf-8")


def read_manifest(folder: Path) -> Manifest:
    try:
        facts = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{folder}: holds no embeddings, expected {MANIFEST} in it") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{folder / MANIFEST}: cannot be read: {error}") from None
    if not isinstance(facts, dict) or facts.get("format") != FORMAT:
        raise UserError(
            f"{folder / MANIFEST}: is not of format {FORMAT}: it may be of another version of "
            f"Vitrail"
        )
    facts.pop("asked", None)  # how earlier versions wrote down what is now `loading`
    return validate(Manifest, facts, where=str(folder / MANIFEST))


def finished_parts(folder: Path) -> list[Path]:
    """The parts that were written to their end, by name."""
    committed = {path.stem for path in (folder / STATE / CHECKPOINT).glob("*.parquet")}
    return sorted(part for part in folder.glob("[!.]*.parquet") if _is_whole(part, committed))


def _is_whole(part: Path, committed: set[str]) -> bool:
    return is_local(part) or part.stem in committed or _task(part) in committed


def is_local(part: Path) -> bool:
    """Whether this machine wrote a part, rather than Ray."""
    return LOCAL_PART.fullmatch(part.stem) is not None


def _task(part: Path) -> str:
    """Ray numbers the files of one task: of task x these are x-0, x-1, …"""
    return part.stem.rpartition("-")[0]


def remove_unfinished(folder: Path) -> None:
    """Remove what Ray had not finished, of which another engine knows nothing. Ray says in its
    checkpoint what it is about to write; any other file is somebody else's, and stays."""
    with writing(folder):
        for pending in (folder / STATE / CHECKPOINT).glob(f"*{PENDING}"):
            task = pending.name.removesuffix(PENDING)
            for part in folder.glob("[!.]*.parquet"):
                if task in (part.stem, _task(part)):
                    part.unlink()
            pending.unlink()


def drop_broken_rows(folder: Path, keys_of_run: AbstractSet[Any] | None, *, key: str) -> None:
    """Let Ray try again what it could not read: take these rows from its checkpoint, then from its
    parts. `keys_of_run` are the keys that this run is about, None all."""
    done = folder / STATE / CHECKPOINT

    def wanted(name: Any) -> bool:
        return keys_of_run is None or name in keys_of_run

    for part in finished_parts(folder):
        if is_local(part):
            continue
        keys, problems = columns_of(part, key, problem_column(part))
        rows = zip(keys.to_pylist(), problems.is_null().to_pylist(), strict=True)
        broken = {name for name, read in rows if not read and wanted(name)}
        if not broken:
            continue
        known = next(
            path for path in (done / part.name, done / f"{_task(part)}.parquet") if path.exists()
        )
        for file in (known, part):
            with reading(file):
                table = pyarrow("pyarrow.parquet").read_table(file)
                keep = [name not in broken for name in table[key].to_pylist()]
            _write_table(file, table.filter(keep), overwrite=True)


@contextmanager
def reading(part: Path) -> Iterator[None]:
    """Say in one sentence that a part is none, or damaged."""
    try:
        yield
    except (OSError, ValueError, KeyError):
        raise UserError(
            f"{part}: is damaged, or no part of these embeddings: remove it, and the same command "
            "computes its images again"
        ) from None


def columns_of(part: Path, *names: str) -> list[Any]:
    with reading(part):
        # without threads: what is read is little, and one that outlives the process ends it badly
        table = pyarrow("pyarrow.parquet").read_table(part, columns=[*names], use_threads=False)
        return [table[name] for name in names]


def known_rows(part: Path) -> dict[str, bool]:
    """The id of every row, and whether that image could be read."""
    ids, problems = columns_of(part, "id", problem_column(part))
    return dict(zip(ids.to_pylist(), problems.is_null().to_pylist(), strict=True))


def problem_column(part: Path) -> str:
    """`problem`, which earlier versions called `reason`."""
    with reading(part):
        names = pyarrow("pyarrow.parquet").read_schema(part).names
    return OLD_PROBLEM if OLD_PROBLEM in names else PROBLEM


def known_ids(parts: list[Path]) -> set[str]:
    """The ids of all rows, broken images too."""
    return {name for part in parts for name in columns_of(part, "id")[0].to_pylist()}


def count_rows(folder: Path) -> int:
    """How many images of a directory could be read."""
    return sum(sum(known_rows(part).values()) for part in finished_parts(folder))


def count_broken(part: Path) -> int:
    return sum(not read for read in known_rows(part).values())


def write_part(folder: Path, table: Any) -> Path:
    """The next part of this machine."""
    names = (part.stem.removeprefix(LOCAL) for part in folder.glob(f"{LOCAL}*.parquet"))
    numbers = [int(name) for name in names if name.isdecimal()]
    return _write_table(folder / f"{LOCAL}{max(numbers, default=-1) + 1:06}.parquet", table)


def _write_table(out: Path, table: Any, *, overwrite: bool = False) -> Path:
    parquet = pyarrow("pyarrow.parquet")
    return write_file(out, lambda draft: parquet.write_table(table, draft), overwrite=overwrite)


def repair_parts(parts: list[Path]) -> None:
    """Where an image could be read after all, the row that says otherwise goes; where it still
    cannot, all but the first. Columns get the names of today."""
    rows = {part: known_rows(part) for part in parts}
    known = {name for ids in rows.values() for name, read in ids.items() if read}
    for part, ids in rows.items():
        gone = {name for name, read in ids.items() if not read and name in known}
        known |= ids.keys()
        if gone or problem_column(part) != PROBLEM:
            with reading(part):
                table = pyarrow("pyarrow.parquet").read_table(part)
                keep = [name not in gone for name in table["id"].to_pylist()]
            columns = [PROBLEM if name == OLD_PROBLEM else name for name in table.column_names]
            _write_table(part, table.rename_columns(columns).filter(keep), overwrite=True)


@dataclass(frozen=True)
class Block:
    """Some images: their ids, and their embeddings at length one."""

    ids: list[str]
    vectors: Float[np.ndarray, "N D"]


@dataclass(frozen=True)
class RowGroup:
    """Where a block lies."""

    part: Path
    group: int

    def read(self) -> Block:
        parquet = pyarrow("pyarrow.parquet")
        with reading(self.part), parquet.ParquetFile(self.part) as file:
            table = file.read_row_group(self.group, columns=["id", "embedding"])
            column = table["embedding"].combine_chunks()
        ids = table["id"].filter(column.is_valid()).to_pylist()
        flat = column.flatten().to_numpy(zero_copy_only=False).astype(np.float32)
        vectors = flat.reshape(len(ids), -1) if ids else np.zeros((0, 1), np.float32)
        return Block(ids, normalise_rows(vectors))


def row_groups(folder: Path) -> list[RowGroup]:
    """Every block of a directory, unread."""
    parquet = pyarrow("pyarrow.parquet")
    found = []
    for part in finished_parts(folder):
        with reading(part), parquet.ParquetFile(part) as file:
            found += [RowGroup(part, group) for group in range(file.num_row_groups)]
    return found


def read_blocks(folder: Path) -> Iterator[Block]:
    """One after another, so that memory holds one."""
    return (place.read() for place in row_groups(folder))


def normalise_rows(vectors: Float[np.ndarray, "N D"]) -> Float[np.ndarray, "N D"]:
    """At length one; what has no length stays where it is."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    scaled: Float[np.ndarray, "N D"] = vectors / np.maximum(lengths, np.finfo(np.float32).tiny)
    return scaled
