"""From one dialect to another, tensor by tensor: nothing is computed, so every bit arrives."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any

from vitrail.core.errors import UserError
from vitrail.core.html_text import html_table
from vitrail.core.json_text import plain_values, to_json
from vitrail.core.passport import Passport, ResizeMethod
from vitrail.models.catalogue import change
from vitrail.models.config import Config, Purpose, fields_for
from vitrail.weights.atomic import write_directory, write_file
from vitrail.weights.checkpoint import Checkpoint, read_config, resize_checkpoint
from vitrail.weights.dialect import Dialect, Foreign
from vitrail.weights.dialects import all_dialects, choose, dialects_called, recognise
from vitrail.weights.families.family import Request
from vitrail.weights.files import SUFFIXES, write_tensors
from vitrail.weights.hub import located
from vitrail.weights.load import fine_tuned, open_checkpoint
from vitrail.weights.mae import AUTOENCODERS, write_mae
from vitrail.weights.native import FOR_PRETRAINING, objective_of, read_beside, write_native
from vitrail.weights.rows import Tensors
from vitrail.weights.translate import write


@dataclass(frozen=True)
class Conversion:
    """What was read, what was written, and where the two ecosystems compute differently."""

    source: Checkpoint
    out: Path
    to: str
    tensors: int
    changes: tuple[str, ...]
    cautions: tuple[str, ...]
    dry_run: bool = False  # nothing was written

    def facts(self) -> dict[str, Any]:
        """Plain values for JSON."""
        facts = {
            **({"dry_run": True} if self.dry_run else {}),
            "out": str(self.out),
            "from": self.source.dialect,
            "to": self.to,
            "tensors": self.tensors,
            "dropped": self.source.coverage.dropped,
            "changes": self.changes,
            "cautions": self.cautions,
        }
        return plain_values(facts)

    def __repr__(self) -> str:
        would = "would write " if self.dry_run else ""
        names = f"{self.source.dialect} to {self.to}"
        return f"Conversion({would}{self.out}, {self.tensors} tensors, {names})"

    def _repr_html_(self) -> str:
        facts = self.facts()
        notes = {name: "; ".join(facts.pop(name)) or "none" for name in ("changes", "cautions")}
        return html_table("Conversion", {**facts, "dropped": len(facts["dropped"]), **notes})


def convert(
    source: str | Path,
    out: str | Path,
    *,
    to: str,
    model: str | None = None,
    dialect: str | None = None,
    grid: tuple[int, int] | None = None,
    method: ResizeMethod | None = None,
    overwrite: bool = False,
    changes: dict[str, Any] | None = None,
) -> Conversion:
    """Write a checkpoint in another dialect: a file where `out` has a known suffix, else a
    directory with sidecars.

    >>> convert("pets-model", "pets-timm", to="timm").tensors
    152
    """
    done, write_files = plan_conversion(
        source,
        out,
        to=to,
        model=model,
        dialect=dialect,
        grid=grid,
        method=method,
        changes=changes,
    )
    write_files(overwrite)
    return done


def check_target(to: str, out: Path) -> None:
    """Refuse an unknown dialect or suffix, before anything is read."""
    if to != "vitrail":
        dialects_called(to)
    refuse_unknown_suffix(out)


def plan_conversion(
    source: str | Path,
    out: str | Path,
    *,
    to: str,
    model: str | None = None,
    dialect: str | None = None,
    grid: tuple[int, int] | None = None,
    method: ResizeMethod | None = None,
    changes: dict[str, Any] | None = None,
    mean_std: tuple[Sequence[float], Sequence[float]] = ((), ()),
) -> tuple[Conversion, Callable[[bool], object]]:
    """Read and translate a checkpoint. Nothing is written until the function that comes with the
    record is called, with whether to overwrite."""
    out = Path(out)
    check_target(to, out)
    changes = changes or {}
    opened = open_checkpoint(source, model=model, dialect=dialect, grid=grid, overrides=changes)
    config = change(opened.config, fine_tuned(opened.config, changes))
    state, passport = resize_checkpoint(opened, config, method=method)
    preprocessing = passport.preprocessing.normalised_by(*mean_std)
    passport = replace(passport, preprocessing=preprocessing)
    done = passport.origin.changes
    if to == "vitrail":
        if out.suffix in SUFFIXES:
            raise UserError(
                f"{out}: a Vitrail checkpoint is a directory: give a name without suffix"
            )
        beside = pretraining_tensors(source, opened, config)
        done = without_loss(done, beside)
        return Conversion(opened, out, to, len(state), done, ()), lambda overwrite: write_native(
            state, passport, out, beside=beside, overwrite=overwrite
        )
    if passport.preprocessing.bits != 8:
        raise UserError(
            f"{source}: the model reads values of {passport.preprocessing.bits} bits, which {to} "
            "cannot express: to must be vitrail"
        )
    target = choose(to, config)
    ours = target.name in AUTOENCODERS and objective_of(opened.passport) == "mae"
    beside = pretraining_tensors(source, opened, config) if ours else {}
    done = without_loss(done, beside)
    foreign = to_foreign(state, passport, config, target, out, beside)
    cautions = losses(foreign, target, config, passport)
    found = Conversion(opened, out, target.name, len(foreign.tensors), done, tuple(cautions))
    return found, partial(write_foreign, foreign, target, out)


def pretraining_tensors(source: str | Path, opened: Checkpoint, config: Config) -> Tensors:
    """What pre-training had beside a model of ours, unless that has become another."""
    same = opened.dialect == "vitrail" and config == opened.config
    return read_beside(located(source)) if same else {}


def without_loss(changes: tuple[str, ...], beside: Tensors) -> tuple[str, ...]:
    """What was changed; what is written after all is not left out."""
    return tuple(one for one in changes if not (beside and one.endswith(FOR_PRETRAINING)))


def refuse_unknown_suffix(out: Path) -> None:
    """Letters after a dot mean a file of that format; the name of a directory may end in .v2."""
    if out.suffix in SUFFIXES:
        return
    if close := get_close_matches(out.suffix, SUFFIXES, 1, 0.75):
        raise UserError(f"{out}: unknown suffix {out.suffix!r}, did you mean {close[0]}?")
    if out.suffix[1:].isalpha():
        known = ", ".join(SUFFIXES)
        raise UserError(
            f"{out}: unknown suffix {out.suffix!r}: use {known}, or none for a directory"
        )


def to_foreign(
    state: Tensors,
    passport: Passport,
    config: Config,
    dialect: Dialect,
    out: Path,
    beside: Tensors,
) -> Foreign:
    """Our tensors in a dialect's names, with the decoder of a masked autoencoder if there is one,
    and the sidecars of a directory."""
    if beside:
        tensors = write_mae({f"model.{k}": t for k, t in state.items()} | beside, dialect.name)
    else:
        where = f"the {dialect.name} dialect"
        tensors = write(dialect.table, state, config, unbound=dialect.unbound, where=where)
    if out.suffix in SUFFIXES:
        return Foreign(str(out), tensors)
    sidecars = dialect.sidecars(replace(passport, config=asdict(config)), config)
    return Foreign(str(out), tensors, sidecars)


def write_foreign(foreign: Foreign, dialect: Dialect, out: Path, overwrite: bool) -> None:
    """Write a file, or a directory with its sidecars."""

    def fill(directory: Path) -> None:
        name = f"model{dialect.suffix}"
        write_tensors(foreign.tensors, directory / name, wrapped=dialect.wrapped)
        for name, content in foreign.sidecars.items():
            (directory / name).write_text(to_json(content, indent=2) + "\n", encoding="utf-8")

    if out.suffix in SUFFIXES:
        write_file(
            out,
            lambda draft: write_tensors(foreign.tensors, draft, wrapped=dialect.wrapped),
            overwrite=overwrite,
        )
    else:
        write_directory(out, fill, overwrite=overwrite)


def losses(written: Foreign, dialect: Dialect, config: Config, passport: Passport) -> list[str]:
    """What someone who reads this back takes for granted and is not so: found by reading it."""
    known = {name: getattr(config, name) for name in ("heads", "channels") if hasattr(config, name)}
    grid = getattr(config, "grid", None)
    try:
        request = Request(written.source, None, grid, known, dialect.square)
        _, read, _ = read_config(written, dialect, request)
        prepared, labels = dialect.preprocessing(written, read), dialect.labels(written)
    except UserError as error:
        return [f"it cannot be read back: {error}"]
    sentences = [
        f"{name} is {ours!r} in these weights, but {dialect.name} will assume {theirs!r}, so that "
        "its outputs will differ"
        for name, ours, theirs in differences(config, read)
    ]
    if prepared != passport.preprocessing:
        sentences.append(
            "the format does not store preprocessing: other programs may prepare images differently"
        )
    if passport.multi_label and not dialect.multi_label(written):
        sentences.append("it does not specify that an image may have several labels")
    if labels != passport.labels:
        sentences.append("it does not contain the names of the classes")
    if (mistaken := mistaken_for(written, dialect)) is not None:
        sentences.append(f'{mistaken}: to load it later, give dialect="{dialect.name}"')
    return sentences


def mistaken_for(written: Foreign, dialect: Dialect) -> str | None:
    """As what the tensors are read where nothing but their names says whose they are."""
    if not any(one.claims(written) for one in all_dialects()):
        known = any(one.name == dialect.name for one in all_dialects())
        return None if known else "its names are those of no known dialect"
    try:
        named = recognise(written).name
    except UserError:  # another architecture has the same tensors
        named = "something else too"
    return None if named == dialect.name else f"by its names alone it is read as {named}"


# a slot or a bias more that is zero computes the same; windows that would compute something else
# are refused
SAME = {"prefix_positions", "head_bias", "window_policy"}


def differences(ours: Config, theirs: Config) -> Iterator[tuple[str, object, object]]:
    """Fields that change what is computed."""
    same = {*SAME, *fields_for(type(ours), Purpose.RUNTIME)}
    for name, value in vars(ours).items():
        other = getattr(theirs, name)
        if name in same or value == other:
            continue
        if name == "stem" and value and other:
            mine, yours = vars(value), vars(other)
            yield from ((f"stem.{k}", mine[k], yours[k]) for k in mine if mine[k] != yours[k])
        elif name != "layer_scale" or (value is None) != (other is None):
            yield name, value, other
