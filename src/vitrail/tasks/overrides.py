"""The recipe of a run: chosen from the data or read from a file, then overridden by options."""

from __future__ import annotations

from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

from vitrail.core.errors import UserError, nearest
from vitrail.core.ranges import check, check_count
from vitrail.core.records import validate
from vitrail.data.source import Source
from vitrail.data.sources import open_data
from vitrail.data.sources.train_share import with_train_share
from vitrail.recipes.bands import with_measured_bands
from vitrail.recipes.catalogue import choose
from vitrail.recipes.choice import Choice
from vitrail.recipes.pretrain import choose_pretraining
from vitrail.recipes.small import SHAPE_REASON
from vitrail.tasks.run_options import FREE, RunOptions
from vitrail.training.goal import Distil, MaskedObjective, goal_for, with_objective
from vitrail.training.recipe import Lora, Recipe
from vitrail.training.recipe_file import NAME, RENAMED, as_plain_values, read_recipe

# Augmentation that needs images of one size.
BLENDING = {
    "augmentation.mixup": 0.0,
    "augmentation.cutmix": 0.0,
    "augmentation.sides": (),
    "augmentation.progressive": (),
}
DEFAULT_OBJECTIVE: MaskedObjective = "mae"  # of pretrain
# How a run is computed, which changes nothing of its result: two starts of it may differ in these.
FREE_FIELDS = ("workers", "parallel", "sharding", "checkpointing")


def new_recipe(options: RunOptions) -> Recipe:
    """The recipe of a run that begins: chosen for the data, with the options in their place."""
    if options.minutes is not None:
        check("minutes", options.minutes, above=0)
        if options.epochs is not None or options.steps is not None:
            raise UserError("minutes must be left out where epochs or steps set the run's length")
    path, changes = Path(options.recipe or ""), options.changes
    share = changes.get("val_share", options.val_share)
    given = {"val_share": share, "folds": options.folds, "fold": options.fold}
    drawn: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    splits = open_data(options.data, **drawn)
    from_file = read_recipe(path) if path.suffix in (".yaml", ".yml") else None
    train_share = changes.get("train_share", from_file.train_share if from_file else 1.0)
    seed = changes.get("seed", options.seed)
    if type(seed) is not int or seed < 0:  # what is no seed the check of all fields refuses
        seed = from_file.seed if from_file else 0
    train = with_train_share(splits, train_share, seed)["train"]
    recipe = from_file or choose_recipe(with_set_batch_size(options), train)
    recipe = override(options, recipe, len(train))
    recipe = with_measured_bands(recipe, train, changes)
    return check_verb(options, recipe, options.recipe or options.data)


def resumed_recipe(options: RunOptions, out: Path) -> Recipe:
    """The recipe of the run in `out`, with the `FREE_FIELDS` of this start; any other option must
    have the same value if it is given again."""
    if not (out / NAME).is_file():
        raise UserError(f"{out}: no run to resume here: give the out directory of the run")
    recipe = check_verb(options, read_recipe(out / NAME), str(out))
    objective = options.objective
    if objective is not None and objective != recipe.goal.objective:
        raise UserError(
            f"{out}: objective must be {recipe.goal.objective}, that of the run, got {objective}"
        )
    if recipe.data != options.data and Path(recipe.data).resolve() != Path(options.data).resolve():
        raise UserError(f"{out}: was trained on {recipe.data}, not on {options.data}")
    refuse_changes(options, recipe)
    changed = override(replace(options, recipe=None), recipe, images=1)
    return replace(recipe, **{name: getattr(changed, name) for name in FREE_FIELDS})


def refuse_changes(options: RunOptions, recipe: Recipe) -> None:
    """Refuse an option that would give a resumed run another result; repeated options are fine."""

    def changes_run(some: RunOptions) -> bool:
        return deciding_fields(override(some, recipe, images=1)) != deciding_fields(recipe)

    chosen = [f for f in fields(options) if f.name not in (*FREE, "verb", "data")]
    defaults: dict[str, Any] = {f.name: f.default for f in chosen}
    given = [name for name in defaults if getattr(options, name) != defaults[name]]
    wrong = list[str]()
    if changes_run(replace(options, recipe=None)):
        alone = {n: replace(options, **{**defaults, n: getattr(options, n)}) for n in given}
        wrong = [name for name in given if name != "recipe" and changes_run(alone[name])] or given
    elif options.recipe is not None:
        batch = recipe.batch_size if options.batch_size == "auto" else options.batch_size
        lr = recipe.optimiser.lr if options.lr == "find" else options.lr
        again = new_recipe(replace(options, batch_size=batch, lr=lr))
        if options.minutes is not None:  # the length was measured when the run began
            again = replace(again, schedule=recipe.schedule)
        wrong = ["recipe"] if deciding_fields(again) != deciding_fields(recipe) else []
    if not wrong:
        return
    what = wrong[0]
    if what == "set":
        each = ({name: value} for name, value in options.changes.items())
        found = (one for one in each if changes_run(replace(options, **(defaults | {"set": one}))))
        (name, value), *_ = next(found, options.changes).items()
        what = f"set {name}={value}"
    raise UserError(
        f"{what} cannot change in a run that is resumed: leave it out, or start another run in "
        "another directory"
    )


def deciding_fields(recipe: Recipe) -> dict[str, Any]:
    """What decides the result of a run, beside its data."""
    idle = ("data", "reasons", *FREE_FIELDS)
    return {name: value for name, value in as_plain_values(recipe).items() if name not in idle}


def with_set_batch_size(options: RunOptions) -> RunOptions:
    """`set` of batch_size chooses as the option does: reasons, lr and warm-up follow it. What is no
    batch size is left to the check of all fields."""
    size = options.changes.get("batch_size")
    return replace(options, batch_size=size) if type(size) is int and size >= 1 else options


def check_verb(options: RunOptions, recipe: Recipe, where: str) -> Recipe:
    """The recipe, if it is one for the verb: labels are for train, all else for pretrain."""
    objective, labels = recipe.goal.objective, options.verb == "train"
    if recipe.has_labels != labels:
        verb = "pretrain" if labels else "train"
        learns = "with labels" if recipe.has_labels else f"without labels, by {objective}"
        raise UserError(f"{where}: this recipe trains {learns}: use vitrail {verb}")
    return recipe


def choose_recipe(options: RunOptions, train: Source) -> Recipe:
    """By the name of a recipe, or by what there is to learn from."""
    choice = Choice(
        data=options.data,
        train=train,
        model=options.model,
        start=options.start,
        batch_size=None if options.batch_size == "auto" else options.batch_size,
        image_size=options.image_size,
        native_resolution=options.native_resolution,
    )
    if options.verb == "train":
        return choose(options.recipe, choice)
    if options.recipe is not None:
        raise UserError(
            f"recipe must be a recipe.yaml for pretrain, got {options.recipe!r}: choose the "
            "objective with objective=NAME"
        )
    objective = options.objective or DEFAULT_OBJECTIVE
    return choose_pretraining(objective, choice, tokenizer=options.tokenizer)


def override(options: RunOptions, recipe: Recipe, images: int) -> Recipe:
    """The recipe with every option that was given in its place."""
    values: dict[str, Any] = {
        "data": options.data,
        "val_share": options.val_share,
        "folds": options.folds,
        "fold": options.fold,
        "seed": options.seed,
        "workers": options.workers,
        "parallel": options.parallel,
        "precision": options.precision,
        "model": options.model,
        "start": options.start,
        "goal.objective": options.objective,
        "goal.tokenizer": options.tokenizer,
        "batch_size": None if options.batch_size == "auto" else options.batch_size,
        "optimiser.lr": None if options.lr == "find" else options.lr,
        "fields.image_size": options.image_size,
        "max_tokens": options.max_tokens,
    }
    if options.native_resolution:  # a recipe's own choice gives way, that of `set` is refused
        values |= {"native_resolution": True, **BLENDING}
    values = {place: value for place, value in values.items() if value is not None}
    if options.epochs is not None or options.steps is not None:
        batch = values.get("batch_size", recipe.batch_size)
        values |= with_duration(options, recipe, max(images // max(batch, 1), 1))
    chosen = recipe
    recipe = drop_reasons(chosen, set_fields(chosen, {**values, **options.changes}))
    before = chosen.augmentation
    if options.native_resolution and (before.mixup or before.cutmix or before.sides):
        reason = "native resolution: no mixup, cutmix or sides, which need images of one size"
        recipe = replace(recipe, reasons=(*recipe.reasons, reason))
    if isinstance(recipe.goal, Distil) and recipe.goal.teacher is None:
        raise UserError("distillation learns from a teacher: set goal.teacher to a checkpoint")
    return recipe


def with_duration(options: RunOptions, recipe: Recipe, steps: int) -> dict[str, Any]:
    """Another length, and the same share of it for the warm-up; `steps` are those of an epoch."""
    if options.epochs is not None and options.steps is not None:
        raise UserError("epochs and steps both set the length of the run: give one")
    if options.steps is not None:
        check_count("steps", options.steps, at_least=1)
    if options.epochs is not None:
        check("epochs", options.epochs, above=0)
    schedule = recipe.schedule
    before = schedule.steps or schedule.epochs * steps
    after = options.steps or (options.epochs or 0) * steps
    values: dict[str, Any] = {"schedule.steps": options.steps}
    if options.epochs is not None:
        values["schedule.epochs"] = options.epochs
    if after < before:
        values["schedule.warmup"] = round(schedule.warmup * after / before)
    return values


def drop_reasons(chosen: Recipe, recipe: Recipe) -> Recipe:
    """The recipe without the reasons for a length or a model that it no longer has."""
    before, after = length_of(chosen), length_of(recipe)
    reasons = recipe.reasons
    if before != after:
        reasons = tuple(reason for reason in reasons if not reason.startswith(f"{before}:"))
        reasons = (*reasons, f"{after}, as requested (the default here is {before})")
    if as_plain_values(chosen)["fields"] != as_plain_values(recipe)["fields"]:
        reasons = tuple(reason for reason in reasons if not reason.startswith(SHAPE_REASON))
    return replace(recipe, reasons=reasons)


def length_of(recipe: Recipe) -> str:
    steps, epochs = recipe.schedule.steps, recipe.schedule.epochs
    number, unit = (f"{epochs:g}", "epoch") if steps is None else (f"{steps:,}", "step")
    return f"{number} {unit}{'' if number == '1' else 's'}"


def set_fields(recipe: Recipe, changes: dict[str, Any]) -> Recipe:
    """The recipe with other values, each by its dotted place."""
    values = as_plain_values(recipe)
    for place, value in changes.items():
        set_field(values, RENAMED.get(place, place), value)
    return validate(Recipe, values, where="recipe")


def set_field(values: dict[str, Any], place: str, value: Any) -> None:
    """Set a field by its dotted place; whether there is such a field the record itself checks."""
    *outer, last = place.split(".")
    if outer[:1] == ["goal"] and isinstance(values.get("goal"), dict):
        if place == "goal.objective":
            values["goal"] = with_objective(values["goal"], value)
            return
        values["goal"] = goal_for(values["goal"], [*outer, last][1])
    for name in outer:
        if name == "lora" and values.get(name) is None:
            values[name] = asdict(Lora())  # lora.rank=4 turns it on
        if not isinstance(values.get(name), dict):
            parts = [*(part for part, inner in values.items() if isinstance(inner, dict)), "lora"]
            raise UserError(f"set {place}: the recipe has no part {name!r}: {nearest(name, parts)}")
        values = values[name]
    values[last] = as_list(value) if isinstance(values.get(last), list | tuple) else value


def as_list(value: Any) -> Any:
    """A list as a person writes it: words with commas between them, or one value.

    >>> as_list("wandb, mlflow"), as_list("[wandb]"), as_list(32)
    (['wandb', 'mlflow'], ['wandb'], [32])
    """
    if isinstance(value, str):
        words = value.strip().removeprefix("[").removesuffix("]").split(",")
        return [word.strip() for word in words if word.strip()]
    return [value] if isinstance(value, int | float) else value
