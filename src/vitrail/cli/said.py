"""From what a person said on the command line to the recipe of a run."""

from __future__ import annotations

from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitrail.cli.options import parse_changes, parse_size
from vitrail.cli.running import DEFAULT
from vitrail.core.errors import UserError, nearest

if TYPE_CHECKING:
    from vitrail.cli.running import Asked
    from vitrail.data.source import Source
    from vitrail.training.recipe import Recipe


def begun(asked: Asked) -> Recipe:
    """The recipe for the data, with what the person said in its place."""
    from vitrail.data.sources import open_data
    from vitrail.training.recipe_file import read_recipe

    path = Path(asked.recipe or "")
    changes = parse_changes(None, asked.set)
    share = changes.get("val_share", asked.val_share)
    train = open_data(asked.data, **({} if share is None else {"val_share": share}))["train"]
    written = path.suffix in (".yaml", ".yml")
    recipe = read_recipe(path) if written else chosen(with_set_batch_size(asked, changes), train)
    recipe = with_said(asked, recipe, changes, len(train))
    return for_verb(asked, recipe, asked.recipe or asked.data)


def continued(asked: Asked, out: Path) -> Recipe:
    """The recipe of the run in `out`; an option beside --resume must have the value it had."""
    from vitrail.training.recipe_file import NAME, read_recipe

    if not (out / NAME).is_file():
        raise UserError(f"{out}: no run to resume here: give the --out of the run")
    recipe = for_verb(asked, read_recipe(out / NAME), str(out))
    objective = getattr(asked, "objective", None)
    if objective is not None and objective != recipe.goal.objective:
        raise UserError(f"{out}: its objective is {recipe.goal.objective}, not {objective}")
    if recipe.data != asked.data and Path(recipe.data).resolve() != Path(asked.data).resolve():
        raise UserError(f"{out}: was trained on {recipe.data}, not on {asked.data}")
    refuse_changes(asked, recipe)
    free = {"workers": asked.workers, "parallel": asked.parallel}
    return changed(recipe, {name: value for name, value in free.items() if value is not None})


def refuse_changes(asked: Asked, recipe: Recipe) -> None:
    """Resuming with the options of the first start, or some of them, is fine; with others not."""

    def changes_run(options: Asked) -> bool:
        said = with_said(options, recipe, parse_changes(None, options.set), images=1)
        return deciding(said) != deciding(recipe)

    usual: dict[str, Any] = {f.name: f.default for f in fields(asked) if f.kw_only}
    given = [f.name for f in fields(asked) if f.kw_only and getattr(asked, f.name) != f.default]
    wrong = []
    if changes_run(replace(asked, recipe=None)):
        each = {n: replace(asked, **{**usual, n: getattr(asked, n)}) for n in given}
        wrong = [name for name in given if name != "recipe" and changes_run(each[name])] or given
    elif asked.recipe is not None:
        batch = str(recipe.batch_size) if asked.batch_size == "auto" else asked.batch_size
        lr = str(recipe.optimiser.lr) if asked.lr == "find" else asked.lr
        again = begun(replace(asked, batch_size=batch, lr=lr))
        wrong = ["recipe"] if deciding(again) != deciding(recipe) else []
    if wrong:
        option = "from" if wrong[0] == "start" else wrong[0].replace("_", "-")
        if option == "set":
            alone = (
                one for one in asked.set if changes_run(replace(asked, **{**usual, "set": (one,)}))
            )
            option = f"set {next(alone, asked.set[0])}"
        raise UserError(
            f"--{option} cannot change in a run that is resumed: leave it out, or begin "
            "another run with another --out"
        )


def deciding(recipe: Recipe) -> dict[str, Any]:
    """What decides the result of a run, beside its data."""
    from vitrail.training.recipe_file import plain

    idle = ("data", "workers", "parallel", "reasons")
    return {name: value for name, value in plain(asdict(recipe)).items() if name not in idle}


def with_set_batch_size(asked: Asked, changes: dict[str, Any]) -> Asked:
    """`--set batch_size=N` chooses as --batch-size N does: reasons, lr and warm-up follow it. What
    is no batch size is left to the check of all changes."""
    size = changes.get("batch_size")
    if type(size) is not int or size < 1:
        return asked
    return replace(asked, batch_size=str(size))


def for_verb(asked: Asked, recipe: Recipe, where: str) -> Recipe:
    """The recipe, if it is one for what was asked: labels are for train, all else for pretrain."""
    from vitrail.cli.train import Train

    objective, labels = recipe.goal.objective, isinstance(asked, Train)
    if (objective == "labels") != labels:
        verb = "pretrain" if labels else "train"
        learns = "labels" if objective == "labels" else f"without labels, by {objective}"
        raise UserError(f"{where}: this recipe learns {learns}: use vitrail {verb}")
    return recipe


def chosen(asked: Asked, train: Source) -> Recipe:
    from vitrail.cli.pretrain import Pretrain
    from vitrail.recipes.catalogue import choose
    from vitrail.recipes.choice import Choice
    from vitrail.recipes.pretrain import choose_pretraining

    size, batch = asked.image_size, asked.batch_size
    choice = Choice(
        data=asked.data,
        train=train,
        model=asked.model,
        start=asked.start,
        batch_size=None if batch in (None, "auto") else int(number("--batch-size", str(batch))),
        image_size=None if size is None else parse_size(size, "--image-size"),
    )
    if isinstance(asked, Pretrain):
        if asked.recipe is not None:
            raise UserError(
                f"--recipe is {asked.recipe!r}, but pretrain takes a recipe.yaml: what is learnt "
                "without labels is named with --objective"
            )
        return choose_pretraining(asked.objective or DEFAULT, choice, tokenizer=asked.tokenizer)
    return choose(asked.recipe, choice)


def with_said(asked: Asked, recipe: Recipe, changes: dict[str, Any], images: int) -> Recipe:
    """The recipe with everything that was said in so many words."""
    said: dict[str, Any] = {
        "data": asked.data,
        "val_share": asked.val_share,
        "seed": asked.seed,
        "workers": asked.workers,
        "parallel": asked.parallel,
        "model": asked.model,
        "start": asked.start,
        "goal.objective": getattr(asked, "objective", None),
        "goal.tokenizer": getattr(asked, "tokenizer", None),
    }
    if asked.batch_size not in (None, "auto"):
        said["batch_size"] = int(number("--batch-size", str(asked.batch_size)))
    if asked.lr not in (None, "find"):
        said["optimiser.lr"] = number("--lr", str(asked.lr))
    if asked.image_size is not None:
        said["fields.image_size"] = parse_size(asked.image_size, "--image-size")
    said = {place: value for place, value in said.items() if value is not None}
    if asked.epochs is not None or asked.steps is not None:
        batch = said.get("batch_size", recipe.batch_size)
        said |= lasting(asked, recipe, max(images // max(batch, 1), 1))
    recipe = with_own_reasons(recipe, changed(recipe, {**said, **changes}))
    if asked.recipe == "deit_distilled" and recipe.goal.teacher is None:
        raise UserError("deit_distilled learns from a teacher: --set goal.teacher=CHECKPOINT")
    return recipe


def lasting(asked: Asked, recipe: Recipe, steps: int) -> dict[str, Any]:
    """Another length, and the same share of it for the warm-up; `steps` are those of an epoch."""
    if asked.epochs is not None and asked.steps is not None:
        raise UserError("--epochs and --steps both say how long the run is: give one")
    schedule = recipe.schedule
    before = schedule.steps or schedule.epochs * steps
    after = asked.steps or (asked.epochs or 0) * steps
    said: dict[str, Any] = {"schedule.steps": asked.steps}
    if asked.epochs is not None:
        said["schedule.epochs"] = asked.epochs
    if after < before:
        said["schedule.warmup"] = round(schedule.warmup * after / before)
    return said


def with_own_reasons(chosen: Recipe, recipe: Recipe) -> Recipe:
    """The recipe without the reasons for a length or a model that it does not have any more."""
    from vitrail.recipes.small import SHAPE_REASON
    from vitrail.training.recipe_file import plain

    before, after = length_of(chosen), length_of(recipe)
    reasons = recipe.reasons
    if before != after:
        reasons = tuple(reason for reason in reasons if not reason.startswith(f"{before}:"))
        reasons = (*reasons, f"{after}, as requested (otherwise {before})")
    if plain(chosen.fields) != plain(recipe.fields):
        reasons = tuple(reason for reason in reasons if not reason.startswith(SHAPE_REASON))
    return replace(recipe, reasons=reasons)


def length_of(recipe: Recipe) -> str:
    steps, epochs = recipe.schedule.steps, recipe.schedule.epochs
    number, unit = (f"{epochs:g}", "epoch") if steps is None else (f"{steps:,}", "step")
    return f"{number} {unit}{'' if number == '1' else 's'}"


def changed(recipe: Recipe, changes: dict[str, Any]) -> Recipe:
    """The recipe with other values, each by its dotted place."""
    from vitrail.core.records import validate
    from vitrail.training.recipe import Recipe
    from vitrail.training.recipe_file import plain

    values = plain(asdict(recipe))
    for place, value in changes.items():
        put(values, place, plain(value))
    return validate(Recipe, values, where="recipe")


def put(values: dict[str, Any], place: str, value: Any) -> None:
    """Set a field by its dotted place, one that holds a list by words with commas between them;
    whether there is such a field the record itself will say."""
    from vitrail.training.recipe import Lora
    from vitrail.training.recipe_file import RENAMED, plain

    place = RENAMED.get(place, place)
    *outer, last = place.split(".")
    for name in outer:
        if name == "lora" and values.get(name) is None:
            values[name] = plain(asdict(Lora()))  # --set lora.rank=4 asks for it
        if not isinstance(values.get(name), dict):
            parts = [*(part for part, inner in values.items() if isinstance(inner, dict)), "lora"]
            hint = nearest(name, parts)
            raise UserError(f"--set {place}: the recipe has no part {name!r}: {hint}")
        values = values[name]
    if isinstance(values.get(last), list) and isinstance(value, str):
        value = [part.strip() for part in value.split(",")]
    values[last] = value


def number(option: str, text: str) -> float:
    """
    >>> number("--lr", "3e-4")
    0.0003
    """
    word = {"--lr": "find", "--batch-size": "auto"}[option]
    try:
        value = float(text)
        if option == "--batch-size" and (value != int(value) or value < 1):
            raise ValueError
    except (ValueError, OverflowError):
        raise UserError(f"{option} is {text!r}, expected a number or {word}") from None
    return value
