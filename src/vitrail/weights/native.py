"""Our own checkpoints: config.json, model.safetensors, README.md for people, and a manifest."""

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrize

from vitrail.core.errors import UserError
from vitrail.core.json_text import to_json
from vitrail.core.passport import Passport, Preprocessing
from vitrail.core.records import validate
from vitrail.models.catalogue import find_family, shapes_of, variant_of
from vitrail.models.config import Config
from vitrail.models.model import Model
from vitrail.weights.atomic import write_directory
from vitrail.weights.files import digest, read_json, read_tensors, tensor_names, write_tensors
from vitrail.weights.rows import Tensors
from vitrail.weights.translate import PRECISIONS

FORMAT = 1
CONFIG, TENSORS, CARD, MANIFEST = "config.json", "model.safetensors", "README.md", "manifest.json"
BESIDE = "objective.safetensors"  # of pre-training
FOR_PRETRAINING = " pre-training"  # how a note on what is left out ends


def save(model: Model, directory: str | Path, *, overwrite: bool = False) -> Path:
    """Write a model so that `load` gives it back: config.json, model.safetensors, README.md.

    >>> save(model, "my-model").name
    'my-model'
    """
    model = unwrapped(model)
    passport = replace(model.passport, config=asdict(model.config))
    state = {name: tensor.cpu() for name, tensor in weights_of(model).items()}
    return write_native(state, passport, Path(directory), overwrite=overwrite)


def weights_of(model: Model) -> Tensors:
    """The tensors that a model computes with, by its own names: what is put on a weight from
    outside, as a low-rank change is, is part of it."""
    state = {
        name: tensor.detach()
        for name, tensor in model.state_dict().items()
        if ".parametrizations." not in name
    }
    with torch.no_grad():
        for name, module in model.named_modules():
            if parametrize.is_parametrized(module):
                parts = module.parametrizations.keys()
                state |= {f"{name}.{part}": getattr(module, part).detach() for part in parts}
    return state


def unwrapped(model: nn.Module) -> Model:
    """The model inside what compiling and data parallelism put around it."""
    while not isinstance(model, Model):
        inner = getattr(model, "_orig_mod", None) or getattr(model, "module", None)
        if not isinstance(inner, nn.Module):
            raise UserError(
                f"a {type(model).__name__} is no Vitrail model: save what create or load gave you"
            )
        model = inner
    if any(parameter.is_meta for parameter in model.parameters()):
        raise UserError("this model is on the meta device, where it has no weights to save")
    return model


def is_native(path: Path) -> bool:
    """Whether a directory is a Vitrail checkpoint."""
    return os.path.isfile(path / MANIFEST)


def read_native(path: Path) -> tuple[Tensors, Passport, Config]:
    """Tensors, passport and config of a checkpoint whose every byte is as it was written."""
    verify(path)
    passport, config = read_passport(read_json(path / CONFIG), where=str(path / CONFIG))
    state = read_tensors(path / TENSORS)
    check_state(state, passport, config, where=str(path))
    return state, passport, config


def read_passport(content: dict[str, Any], *, where: str) -> tuple[Passport, Config]:
    """Passport and config from what a config.json of ours holds."""
    block = content.get("vitrail")
    if not isinstance(block, dict) or block.get("format") != FORMAT:
        raise UserError(
            f"{where}: no passport of format {FORMAT}: written by another version of Vitrail?"
        )
    passport = validate(Passport, rename_fields(block.get("passport", {})), where=where)
    try:
        family = find_family(passport.family)
    except UserError as error:
        raise UserError(f"{where}: {error}") from None
    return passport, validate(family.config, passport.config, where=where)


# What passports and configs of earlier versions called their fields.
RENAMED = {"several": "multi_label", "edges": "window_policy"}


def rename_fields(passport: Any) -> Any:
    """A passport as it was written, with the names that its fields have now."""
    if not isinstance(passport, dict):
        return passport
    now = {RENAMED.get(name, name): value for name, value in passport.items()}
    if isinstance(now.get("config"), dict):
        now["config"] = {RENAMED.get(name, name): value for name, value in now["config"].items()}
    return now


def objective_of(passport: Passport) -> str:
    """What a checkpoint was trained for, as its provenance records."""
    found: Any = passport.provenance
    for name in ("recipe", "goal", "objective"):
        found = found.get(name) if isinstance(found, dict) else None
    return found if isinstance(found, str) else "labels"


def read_beside(path: str | Path) -> Tensors:
    """What the objective of a pre-training run has beside its model; nothing in other places."""
    file = Path(path) / BESIDE
    return read_tensors(file) if file.is_file() else {}


def left_out(path: Path, passport: Passport) -> tuple[str, ...]:
    """What pre-training had beside the model, by name, and why it is not loaded."""
    file = path / BESIDE
    names = tensor_names(file) if file.is_file() else []
    counts = Counter(name.partition(".")[0] for name in names)
    named = [name if count == 1 else f"{name} ({count} tensors)" for name, count in counts.items()]
    if not named:
        return ()
    verb, objective = "it is" if len(named) == 1 else "they are", objective_of(passport)
    objective = objective.upper() if objective == "mae" else objective
    return (f"{', '.join(named)} left out: {verb} needed only for {objective}{FOR_PRETRAINING}",)


def check_state(state: Tensors, passport: Passport, config: Config, *, where: str) -> None:
    """The tensors are those of the model that the config describes, and the labels are its
    classes."""
    shapes = shapes_of(config)
    given = {name: tensor.shape for name, tensor in state.items()}
    for name in (*shapes, *given):
        if given.get(name) != shapes.get(name):
            raise UserError(f"{where}: {_mismatch(name, given, shapes)}")
    if strange := [name for name, tensor in state.items() if tensor.dtype not in PRECISIONS]:
        raise UserError(
            f"{where}: {strange[0]} must hold floating-point numbers, got {state[strange[0]].dtype}"
        )
    if passport.labels is not None and len(passport.labels) != config.num_classes:
        raise UserError(
            f"{where}: labels must be as many as the {config.num_classes} classes, got "
            f"{len(passport.labels)}"
        )


def _mismatch(name: str, given: Mapping[str, torch.Size], shapes: Mapping[str, torch.Size]) -> str:
    if name not in given:
        return f"tensor {name} is missing (expected shape {tuple(shapes[name])})"
    if name not in shapes:
        return f"tensor {name} must not be there: the model of its config has none of that name"
    return f"tensor {name} must have the shape {tuple(shapes[name])}, got {tuple(given[name])}"


def verify(path: Path) -> None:
    """Every file as the manifest lists it, or a sentence that names the first that is not."""
    manifest = read_json(path / MANIFEST)
    if manifest.get("format") != FORMAT:
        raise UserError(
            f"{path / MANIFEST}: no manifest of format {FORMAT}: of another version of Vitrail?"
        )
    files = manifest.get("files")
    if not isinstance(files, dict) or {CONFIG, TENSORS} - files.keys():
        raise UserError(f"{path / MANIFEST}: expected a table of files with their SHA-256")
    for name, expected in files.items():
        file = path / name
        if Path(name).name != name or not os.path.isfile(file):
            raise UserError(
                f"{file}: named in the manifest but not there: copy the directory whole"
            )
        if digest(file) != expected:
            raise UserError(f"{file}: its content is not what was written: copy it again")


def write_native(
    state: Tensors,
    passport: Passport,
    out: Path,
    *,
    beside: Tensors | None = None,
    texts: Mapping[str, str] | None = None,
    overwrite: bool = False,
    keep_others: bool = False,
) -> Path:
    """Write tensors with their passport; what could not be read back is not written. `beside` is
    what pre-training needs and no model has: a decoder, a mask token. `texts` are more files for
    people. `keep_others`: files of others in a directory that is overwritten stay, where else they
    are refused."""
    validate(Passport, asdict(passport), where="passport")
    config = validate(find_family(passport.family).config, passport.config, where="passport")
    check_state(state, passport, config, where=str(out))
    written = {
        **(texts or {}),
        CONFIG: to_json(_config_json(passport, config), indent=2) + "\n",
        CARD: model_card(passport, config, state),
    }

    def fill(directory: Path) -> None:
        write_tensors({name: t.contiguous() for name, t in state.items()}, directory / TENSORS)
        for name, text in written.items():
            (directory / name).write_text(text, encoding="utf-8")
        # not the card: it is there for people to write on
        names = [CONFIG, TENSORS]
        if beside:
            write_tensors({name: t.contiguous() for name, t in beside.items()}, directory / BESIDE)
            names.append(BESIDE)
        files = {name: digest(directory / name) for name in names}
        manifest = to_json({"format": FORMAT, "files": files}, indent=2) + "\n"
        (directory / MANIFEST).write_text(manifest, encoding="utf-8")

    return write_directory(out, fill, overwrite=overwrite, keep_others=keep_others)


def replace_native(
    state: Tensors, passport: Passport, out: Path, *, beside: Tensors | None = None
) -> Path:
    """The same in place of an older checkpoint, as a run does again and again: what others have put
    beside it stays."""
    return write_native(state, passport, out, beside=beside, overwrite=True, keep_others=True)


def model_card(passport: Passport, config: Config, state: Tensors) -> str:
    """README.md: what this is, how to use it, where it comes from."""
    name = variant_of(config) or passport.family
    before, origin = passport.preprocessing, passport.origin
    statistics = (".running_mean", ".running_var")  # of batch norms: measured, not learnt
    parameters = sum(t.numel() for name, t in state.items() if not name.endswith(statistics))
    height, width = config.image_size
    classes = f"{config.num_classes} class{'' if config.num_classes == 1 else 'es'}"
    lines = [
        "---",
        "library_name: vitrail",
        "pipeline_tag: image-classification",
        *([f"license: {origin.licence}"] if origin.licence else []),
        "---",
        f"# {name}",
        "",
        f"{parameters:,} parameters, {classes}, {height}x{width} images.",
        "",
        "```python",
        "import vitrail",
        'model = vitrail.load("this-directory")',
        "```",
        "",
        f"- Origin: {origin.source} ({origin.dialect})",
        *[f"- Changed: {sentence}" for sentence in origin.changes],
        f"- Preprocessing: {_in_words(before)}",
        *[f"- {metric} (validation): {value:g}" for metric, value in passport.scores.items()],
        *([f"- Classes: {_listed(passport.labels)}"] if passport.labels else []),
    ]
    return "\n".join(lines) + "\n"


def _listed(labels: Sequence[str], most: int = 20) -> str:
    """
    >>> _listed(["cat", "dog", "fox"], most=2)
    'cat, dog … and 1 more'
    """
    more = f" … and {len(labels) - most:,} more" if len(labels) > most else ""
    return ", ".join(labels[:most]) + more


def _in_words(before: Preprocessing) -> str:
    values = f"{before.channel_order}, mean {before.mean}, std {before.std}"
    return f"{before.in_words()}, {values}"


def _config_json(passport: Passport, config: Config) -> dict[str, Any]:
    """timm's fields where it has one, for people and tools that know them; the truth is under
    "vitrail"."""
    before, pool = passport.preprocessing, getattr(config, "pool", "mean")
    return {
        "architecture": variant_of(config) or passport.family,
        "num_classes": config.num_classes,
        "num_features": config.features,
        "global_pool": {"cls": "token", "mean": "avg"}.get(pool, pool),
        **({"label_names": list(passport.labels)} if passport.labels else {}),
        "pretrained_cfg": {
            "input_size": [config.channels, *config.image_size],
            "interpolation": before.interpolation,
            "crop_pct": before.crop_share,
            "crop_mode": "center" if before.resize and not before.squeeze else "squash",
            "mean": list(before.mean),
            "std": list(before.std),
            "num_classes": config.num_classes,
        },
        "vitrail": {"format": FORMAT, "passport": asdict(passport)},
    }
