"""`vitrail.adopt`: a ViT that somebody wrote by hand becomes one of ours."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.core.errors import UserError, nearest
from vitrail.core.html_text import html_table
from vitrail.core.json_text import plain_values
from vitrail.core.passport import Preprocessing
from vitrail.core.ranges import check_count
from vitrail.data.reader import ImageSource, preprocess
from vitrail.models.model import Model
from vitrail.models.vit import ViTConfig
from vitrail.tasks.adopt_code import load_code
from vitrail.tasks.export import find_photos
from vitrail.weights.adopt.from_module import ANSWERS, noise
from vitrail.weights.adopt.match import Match, match_file, match_module, match_rows
from vitrail.weights.adopt.rows_file import NAME, read_rows, to_yaml
from vitrail.weights.atomic import check_writable
from vitrail.weights.checkpoint import build_model
from vitrail.weights.dialect import Foreign
from vitrail.weights.files import SUFFIXES, read_foreign
from vitrail.weights.modules import inside
from vitrail.weights.native import is_native, weights_of, write_native

MOST_IMAGES = 8


@dataclass(frozen=True)
class Adoption:
    """The rows that were found, where each setting is from, what was assumed, and how far ours is
    from theirs on images, if their code was given. `model` is ours, with their weights."""

    source: str
    out: Path | None
    match: Match
    unwrapped: tuple[str, ...] = ()
    dry_run: bool = False  # nothing was written

    @property
    def model(self) -> Model:
        """Our model with their weights."""
        return build_model(self.match.checkpoint, self.match.checkpoint.config)

    @property
    def rows(self) -> tuple[dict[str, Any], ...]:
        return self.match.rows.rows

    @property
    def rows_yaml(self) -> str:
        """The rows as OUT/rows.yaml has them."""
        return to_yaml(self.match.rows, self.source, self.match.how)

    def facts(self) -> dict[str, Any]:
        """Plain values for JSON."""
        checkpoint, proof = self.match.checkpoint, self.match.proof
        facts = {
            **({"dry_run": True} if self.dry_run else {}),
            "source": self.source,
            "out": None if self.out is None else str(self.out),
            "tensors": len(checkpoint.state),
            "unwrapped": self.unwrapped,
            "rows": self.rows,
            "config": asdict(checkpoint.config),
            "sources": dict(self.match.how),
            "assumed": self.assumed,
            "notes": self.notes,
            "dropped": checkpoint.coverage.dropped,
            "proof": None if proof is None else proof.facts(),
        }
        return plain_values(facts)

    @property
    def assumed(self) -> tuple[str, ...]:
        """What nothing decided, a sentence each."""
        return tuple(one for one in self.match.checkpoint.notes if one.startswith("assumed: "))

    @property
    def notes(self) -> tuple[str, ...]:
        return tuple(n for n in self.match.checkpoint.notes if not n.startswith("assumed: "))

    def lines(self) -> list[str]:
        """What was proved, unwrapped and assumed, a sentence each."""
        proof = self.match.proof
        lines = [f"unwrapped: {one}" for one in self.unwrapped]
        if proof is not None:
            lines.append(
                f"equal: {proof.images} images, {proof.points} activations, logits at most "
                f"{proof.largest_difference:.1e} apart (largest {proof.largest_logit:.3g}, float64)"
            )
        else:
            lines.append("not proved: give the code of the model to compare with it")
        return [*lines, *self.assumed, *(f"note: {one}" for one in self.notes)]

    def table(self) -> list[tuple[str, str, str]]:
        """Theirs, ours and the operation of every row."""
        return [table_row(row) for row in self.rows]

    def __repr__(self) -> str:
        config, proof = self.match.checkpoint.config, self.match.proof
        assert isinstance(config, ViTConfig)
        equal = "not proved" if proof is None else f"{proof.largest_difference:.1e} apart"
        where = "" if self.out is None else f" to {self.out}"
        size = f"{config.depth} blocks of width {config.dim}, {config.heads} heads"
        return f"Adoption({self.source}{where}: {len(self.rows)} rows, {size}, {equal})"

    def _repr_html_(self) -> str:
        named = [(theirs, f"{ours} {op}".strip()) for theirs, ours, op in self.table()]
        return html_table(f"Adoption of {self.source}", named)


def table_row(row: Mapping[str, Any]) -> tuple[str, str, str]:
    theirs = row.get("theirs", "")
    listed = [theirs] if isinstance(theirs, str) else theirs
    names = " + ".join(listed if len(listed) <= 3 else [*listed[:2], f"… ({len(listed)})"])
    if "drop" in row:
        return names, "(dropped)", row["drop"]
    if "fill" in row:
        return "(none)", row["ours"], f"{row['fill']}: {row.get('why', '')}"
    op = row.get("op", "" if len(listed) == 1 else "one after the other")
    moves = {"last_first": "last row first", "columns_first": "patches column by column"}
    done = [op, *(words for key, words in moves.items() if row.get(key))]
    return names, row["ours"], ", ".join(filter(None, done))


def adopt(
    source: str | Path | nn.Module,
    out: str | Path | None = None,
    *,
    code: str | Path | nn.Module | None = None,
    args: Mapping[str, Any] | None = None,
    rows: str | Path | None = None,
    images: ImageSource | Iterable[ImageSource] | None = None,
    mean: Sequence[float] = (),
    std: Sequence[float] = (),
    labels: Sequence[str] | None = None,
    overwrite: bool = False,
    dry_run: bool = False,
    **changes: Any,
) -> Adoption:
    """Match a hand-written ViT with ours and write it to the directory `out`: a state dict in a
    file, by words, shapes and order; with its `code` ("my_model.py:ViT", called with `args`, or a
    module) also by running both on `images` (two photos of scikit-learn) in float64. A module in
    memory is its own code. A module that ours does not equal is refused.

    `changes` are config fields that nothing shows: heads, norm_eps, activation, norm_placement,
    pool, image_size, … What is assumed for the others is in `assumed`. `mean` and `std` are those
    that its images were normalised with, `labels` the names of its classes. The rows are written to
    OUT/rows.yaml; an edited copy is given by `rows`, and is a dialect for `load` and `convert`.

    >>> torch.save(model.state_dict(), "my.pth")
    >>> adopt("my.pth", "mine", heads=3).rows[0]["ours"]
    'patches.projection.{p}'
    """
    check_out(out, overwrite=overwrite, dry_run=dry_run)
    given = check_changes(changes)
    table = read_rows(rows) if rows is not None else None
    module, foreign = open_source(source, code, args or {})
    name, origin = names_of(source, module)
    settings: dict[str, Any] = {"origin": origin, "mean": mean, "std": std}
    if module is not None:
        pictures = Pictures(images, mean, std)
        found = match_module(module, given, pictures, source=name, rows=table, **settings)
    elif table is not None:
        found = match_rows(foreign, table, given, **settings)
    else:
        found = match_file(foreign, given, **settings)
    check_size(found, given)
    found = with_labels(found, labels)
    done = Adoption(name, None if out is None else Path(out), found, foreign.wrapped, dry_run)
    if out is not None and not dry_run:
        model = build_model(found.checkpoint, found.checkpoint.config)
        write_native(
            weights_of(model),
            model.passport,
            Path(out),
            texts={NAME: done.rows_yaml},
            overwrite=overwrite,
        )
    return done


def check_out(out: str | Path | None, *, overwrite: bool, dry_run: bool) -> None:
    """Refuse a directory that could not be written, before anything is read."""
    if out is None:
        return
    if Path(out).suffix in SUFFIXES:
        raise UserError(f"{out}: a Vitrail checkpoint is a directory: give a name without suffix")
    if os.path.lexists(out) and not (overwrite or dry_run):
        raise UserError(f"{out}: already exists: choose another name, or pass overwrite=True")
    check_writable(Path(out))


def check_changes(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Config fields that tensors do not show; others are changed once the model is ours."""
    for name in changes:
        if name not in ANSWERS:
            known = nearest(name, ANSWERS, "fields are")
            raise UserError(
                f"{name} cannot be given to adopt: the tensors show it, or there is no such field "
                f"({known}); change it when you load the result"
            )
    given = {name: value for name, value in changes.items() if value is not None}
    if "heads" in given:
        check_count("heads", given["heads"], at_least=1)
    if isinstance(given.get("image_size"), int):
        given["image_size"] = (given["image_size"], given["image_size"])
    for side in given.get("image_size", ()):
        check_count("image_size", side, at_least=1)
    return {n: tuple(v) if isinstance(v, list) else v for n, v in given.items()}


def check_size(found: Match, given: Mapping[str, Any]) -> None:
    """The size of a file with positions is decided by them."""
    own, wanted = found.checkpoint.config.image_size, given.get("image_size", ())
    if wanted and tuple(wanted) != tuple(own):
        raise UserError(
            f"image_size must be that of the positions in the file, {own[0]}x{own[1]}, got "
            f"{wanted[0]}x{wanted[1]}: leave it out, and resize the result when you load it"
        )


def open_source(
    source: str | Path | nn.Module, code: str | Path | nn.Module | None, args: Mapping[str, Any]
) -> tuple[nn.Module | None, Foreign]:
    """The module with its weights, if there is one, and the file."""
    if isinstance(source, nn.Module):
        if code is not None:
            raise UserError("code must not be given with a module in memory, which is its own code")
        module = inside(source)
        if isinstance(module, Model):
            raise UserError("this is a Vitrail model already: save it, there is nothing to adopt")
        return module, Foreign(type(module).__name__, {})
    if not isinstance(source, str | Path):
        raise UserError(
            f"source must be a file of tensors or a module, got {type(source).__name__}: save "
            "model.state_dict() with torch.save"
        )
    if str(source).partition(":")[0].endswith(".py"):
        raise UserError(f"{source}: expected a file of tensors; give Python code by code=FILE.py")
    path = Path(source)
    if is_native(path):
        raise UserError(f"{source}: this is a Vitrail checkpoint already: load it")
    foreign = read_foreign(path)
    if code is None and args:
        raise UserError(
            "args must come with code, whose class they are given to: pass code=FILE.py"
        )
    return (None if code is None else load_code(code, args, foreign)), foreign


def names_of(source: str | Path | nn.Module, module: nn.Module | None) -> tuple[str, str]:
    """How messages name the source, and where the passport says it comes from."""
    if isinstance(source, nn.Module):
        assert module is not None
        kind = type(module)
        return f"the {kind.__name__} that you gave", f"{kind.__module__}.{kind.__name__}"
    return str(source), Path(source).name


@dataclass(frozen=True)
class Pictures:
    """Real images for two models to be compared on, once their size is known."""

    images: Any
    mean: Sequence[float]
    std: Sequence[float]

    def __call__(self, channels: int, size: tuple[int, int]) -> Tensor:
        if channels not in (1, 3):  # no photo has so many
            return noise(channels, size)
        halves = (0.5,) * channels
        how = Preprocessing(size=size, mean=halves, std=halves).normalised_by(self.mean, self.std)
        photos = find_photos(self.images, most=MOST_IMAGES)
        return preprocess(photos, how).to(torch.float64)


def with_labels(found: Match, labels: Sequence[str] | None) -> Match:
    """The match with the names of its classes, if they are given."""
    if labels is None:
        return found
    checkpoint = found.checkpoint
    if isinstance(labels, str) or len(labels) != checkpoint.config.num_classes:
        raise UserError(
            f"labels must be {checkpoint.config.num_classes} names, one for each class, got "
            f"{labels if isinstance(labels, str) else len(labels)}"
        )
    passport = replace(checkpoint.passport, labels=tuple(map(str, labels)))
    return replace(found, checkpoint=replace(checkpoint, passport=passport))
