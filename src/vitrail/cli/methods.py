"""How a command line says by which methods, and of what: layers, queries, classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from vitrail.core.errors import UserError, nearest

if TYPE_CHECKING:
    from vitrail.cli.explain import Explain
    from vitrail.core.passport import Passport
    from vitrail.explanation.auto_method import MethodChoice
    from vitrail.models.model import Model

ALL = "all"
HEADLESS = ("attention", "rollout")  # methods that ask about no class


def known_methods(asked: Sequence[str]) -> tuple[str, ...]:
    from vitrail.explanation.methods import AUTO, METHODS

    for name in asked:
        if name not in (*METHODS, AUTO, ALL):
            raise UserError(f"unknown method {name!r}, {nearest(name, METHODS)}")
    return tuple(METHODS) if ALL in asked else tuple(dict.fromkeys(asked))


def choose_auto(names: tuple[str, ...], model: Model) -> MethodChoice | None:
    """What auto takes for this model; none where auto was not asked for."""
    from vitrail.explanation.methods import AUTO, choose_method

    return choose_method(model) if AUTO in (names or (AUTO,)) else None


def with_options(
    asked: Explain, names: tuple[str, ...], model: Model, auto: MethodChoice | None
) -> dict[str, dict[str, Any]]:
    """Each method with the options that were given and that it has."""
    from inspect import signature

    from vitrail.explanation.methods import AUTO, METHODS

    headless = not model.config.num_classes
    chosen_names = (auto.method if auto and name == AUTO else name for name in names or (AUTO,))
    names = tuple(dict.fromkeys(chosen_names))
    if headless and (wrong := [name for name in names if name not in HEADLESS]):
        raise UserError(
            f"{asked.source} has no head, and {wrong[0]} explains a class: look into it by "
            f"{' and '.join(HEADLESS)}"
        )
    layer = parse_layer(asked.layer)
    said: dict[str, Any] = {"layer": layer, "head": asked.head, "query": parse_query(asked.query)}
    said |= {"fusion": asked.fusion, "discard": asked.discard}
    said = {name: value for name, value in said.items() if value is not None}
    chosen: dict[str, dict[str, Any]] = {}
    for name in names:
        known = signature(METHODS[name]).parameters
        chosen[name] = {option: value for option, value in said.items() if option in known}
    for option in said:
        if not any(option in options for options in chosen.values()):
            able = [name for name, m in METHODS.items() if option in signature(m).parameters]
            raise UserError(f"--{option} is for {' and '.join(able)}: add --method {able[0]}")
    for name in ("gradcam", "hirescam"):  # these read the output of a block, not an attention
        if isinstance(layer, int) and "layer" in chosen.get(name, {}):
            chosen[name]["layer"] = block_name(model, layer)
    return chosen


def block_name(model: Model, number: int) -> str:
    blocks = list(model.blocks_by_depth())
    if not -len(blocks) <= number < len(blocks):
        raise UserError(f"layer is {number}, but there are {len(blocks)} blocks, from 0 on")
    return blocks[number]


def parse_layer(text: str | None) -> str | int | None:
    return int(text) if text is not None and text.lstrip("-").isdigit() else text


def parse_query(text: str | None) -> int | tuple[int, int] | None:
    """
    >>> parse_query("7,3"), parse_query("0")
    ((7, 3), 0)
    """
    if text is None:
        return None
    parts = text.split(",")
    if not all(part.strip().isdigit() for part in parts) or len(parts) > 2:
        raise UserError(f"--query is {text!r}, expected row,column like 7,3 or a token's number")
    numbers = [int(part) for part in parts]
    return numbers[0] if len(numbers) == 1 else (numbers[0], numbers[1])


def parse_target(text: str | None, passport: Passport, classes: int) -> int | None:
    """A class by its label, or by its number where no label is called so."""
    if text is None:
        return None
    labels = passport.labels or ()
    if text in labels:
        return labels.index(text)
    if text.isdigit() and int(text) < classes:
        return int(text)
    hint = nearest(text, labels) if labels else f"expected a number below {classes}"
    raise UserError(f"--target is {text!r}, which is no class of this model, {hint}")
