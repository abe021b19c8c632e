"""`vitrail info`: what a model is made of, and what a checkpoint says of itself."""

from __future__ import annotations

from dataclasses import KW_ONLY, asdict, dataclass
from dataclasses import fields as dataclass_fields
from typing import TYPE_CHECKING, Any

from vitrail.cli.options import OutputOptions, is_checkpoint, parse_changes, parse_grid
from vitrail.cli.output import say, say_json, say_table

if TYPE_CHECKING:
    from vitrail.models.measure import Measure
    from vitrail.weights.checkpoint import Checkpoint


@dataclass(frozen=True)
class Info(OutputOptions):
    """Which model or checkpoint to describe, at which size."""

    source: str
    """A model's name (vit_b_16), a Vitrail directory, a foreign file or directory, or
    hf-hub:owner/name."""
    _: KW_ONLY
    image_size: str | None = None
    """Another image size: 224, or height x width as 192x672."""
    batch_size: int = 1
    """Images in a batch, for shapes, multiply-adds and activations."""
    depth: int = 2
    """How deep into the modules the table goes."""
    model: str | None = None
    """The variant that a foreign file holds, where it does not tell."""
    dialect: str | None = None
    """The dialect of a foreign file, where its names do not tell."""
    grid: str | None = None
    """Rows x columns of a foreign file's positions, where it does not tell."""
    set: tuple[str, ...] = ()
    """Another field of the model: --set num_classes=10. May be repeated."""


def info(asked: Info) -> None:
    """Describe a model layer by layer, or a checkpoint: dialect, config, coverage, passport."""
    from vitrail.core.errors import UserError
    from vitrail.models.catalogue import change, find
    from vitrail.models.measure import measure
    from vitrail.weights.checkpoint import resize_checkpoint
    from vitrail.weights.load import fine_tuned, open_checkpoint

    if asked.batch_size < 1:
        raise UserError(f"--batch-size is {asked.batch_size}, but a batch has at least one image")
    changes = parse_changes(asked.image_size, asked.set)
    facts: dict[str, Any] = {"source": asked.source}
    if is_checkpoint(asked.source):
        opened = open_checkpoint(
            asked.source,
            model=asked.model,
            dialect=asked.dialect,
            grid=parse_grid(asked.grid),
            overrides=changes,
        )
        config = change(opened.config, fine_tuned(opened.config, changes))
        _, passport = resize_checkpoint(opened, config)
        facts |= {"checkpoint": describe(opened), "passport": asdict(passport)}
    else:
        config = change(find(asked.source), changes)
    measured = measure(config, asked.batch_size)
    facts |= {"config": asdict(config), "batch_size": asked.batch_size, **asdict(measured)}
    if asked.json:
        say_json(facts)
        return
    if "checkpoint" in facts:
        print_checkpoint(facts)
    print_layers(measured, asked)


def describe(opened: Checkpoint) -> dict[str, Any]:
    """Coverage in numbers, and every reason."""
    coverage = opened.coverage
    reasons: dict[str, list[str]] = {}
    for name, why in coverage.dropped:
        reasons.setdefault(why, []).append(name)
    return {
        "dialect": opened.dialect,
        "tensors": len(opened.state),
        "precision": sorted({str(t.dtype).removeprefix("torch.") for t in opened.state.values()}),
        "used": len(coverage.used),
        "dropped": [{"why": why, "tensors": names} for why, names in reasons.items()],
        "filled": [{"why": why, "tensor": name} for name, why in coverage.filled],
    }


def print_checkpoint(facts: dict[str, Any]) -> None:
    found, passport = facts["checkpoint"], facts["passport"]
    used = f"{found['used']} foreign tensors used" if found["used"] else "native"
    lines = [
        ("dialect", found["dialect"]),
        ("tensors", f"{found['tensors']} ({', '.join(found['precision'])}), {used}"),
        *[
            ("dropped", f"{len(row['tensors'])} ({', '.join(row['tensors'][:3])}…): {row['why']}")
            for row in found["dropped"]
        ],
        *[("filled", f"{row['tensor']}: {row['why']}") for row in found["filled"]],
        *[("note", sentence) for sentence in passport["origin"]["changes"]],
        ("config", fields(unusual(passport["family"], facts["config"]))),
        ("preprocessing", preprocessing_of(passport)),
        ("resize", passport["resize"]),
        ("origin", f"{passport['origin']['source']} ({passport['origin']['dialect']})"),
        *([("labels", ", ".join(passport["labels"][:8]))] if passport["labels"] else []),
        *([("scores", fields(passport["scores"]))] if passport["scores"] else []),
    ]
    for name, value in lines:
        say(f"{name:14}{value}")
    say("")


def preprocessing_of(passport: dict[str, Any]) -> str:
    """As the model card has it."""
    from vitrail.core.passport import Preprocessing

    how = Preprocessing(**passport["preprocessing"])
    return f"{how.in_words()}, {how.channel_order}, mean {how.mean}, std {how.std}"


def unusual(family: str, config: dict[str, Any]) -> dict[str, Any]:
    """The fields that are not at their default, which is what makes this model this model."""
    from vitrail.models.catalogue import FAMILIES

    plain = {field.name: field.default for field in dataclass_fields(FAMILIES[family].config)}
    return {name: value for name, value in config.items() if value != plain[name]}


def fields(record: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in record.items())


def print_layers(measured: Measure, asked: Info) -> None:
    rows = []
    for layer in measured.layers:
        if layer.name.count(".") < asked.depth and layer.kind not in ("Identity", "Dropout"):
            shape = " x ".join(map(str, layer.output))
            rows.append((layer.name, layer.kind, shape, f"{layer.params:,}", f"{layer.macs:,}"))
    say_table(("module", "kind", "output", "parameters", "multiply-adds"), rows, right=2)
    images = "one image" if asked.batch_size == 1 else f"{asked.batch_size} images"
    kept = megabytes(measured.activation_memory)
    say(
        "",
        f"parameters    {measured.params:,} ({megabytes(measured.parameter_memory)} in float32)",
        f"multiply-adds {measured.macs:,} for {images}",
        f"activations   {kept} kept for the backward pass of {images}, with fused attention",
    )


def megabytes(count: int) -> str:
    return f"{count / 2**20:,.1f} MiB"
