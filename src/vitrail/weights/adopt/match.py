"""Matching a hand-written ViT with ours: a bare file, or a file and the module that it is of."""

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.core.errors import UserError
from vitrail.models.model import Model
from vitrail.weights.adopt.assumptions import assumed_preparation, sentences
from vitrail.weights.adopt.candidates import arrangement_of, arrangements_in, choose
from vitrail.weights.adopt.module_facts import facts_of
from vitrail.weights.adopt.other_families import refuse_other
from vitrail.weights.adopt.propose import UNUSED, Proposal, propose
from vitrail.weights.adopt.roles import Roles, find_roles
from vitrail.weights.adopt.rows_file import RowsFile
from vitrail.weights.adopt.trace import (
    Arrangement,
    Difference,
    Trace,
    exact,
    exact_copy,
    first_difference,
    output_of,
    points,
    trace_ours,
    trace_theirs,
)
from vitrail.weights.checkpoint import Checkpoint, build_model, translate
from vitrail.weights.dialect import Foreign
from vitrail.weights.patterns import THEIRS, Pattern, pairs_of
from vitrail.weights.translate import some

Images = Callable[[int, tuple[int, int]], Tensor]  # of so many channels and that size


@dataclass(frozen=True)
class Proof:
    """How far ours and theirs are apart on images, in float64."""

    images: int
    points: int  # compared on the way, logits included
    largest_difference: float
    largest_logit: float

    def facts(self) -> dict[str, Any]:
        return dict(vars(self))


@dataclass(frozen=True)
class Match:
    """A translated checkpoint, the rows that translate it, and where every setting is from."""

    checkpoint: Checkpoint
    rows: RowsFile
    how: Mapping[str, str] = field(default_factory=dict)
    assumed: tuple[str, ...] = ()
    proof: Proof | None = None


def match_file(
    foreign: Foreign, given: Mapping[str, Any], *, origin: str, mean: Any = (), std: Any = ()
) -> Match:
    """A bare file, by words, shapes and order; what these leave open is assumed and said."""
    counters = whole_numbers(foreign)
    roles = roles_of(foreign, counters)
    proposal = propose(roles, given, foreign.source)
    if "heads" not in proposal.settings:
        inner = roles.inner
        fitting = ", ".join(str(n) for n in range(1, 33) if inner % n == 0)
        raise UserError(
            f"{foreign.source}: nothing in the file shows how many heads share its {inner} "
            f"attention channels ({fitting} would fit): give heads=N, or the model's code"
        )
    proposal = assume_final_norm(proposal)
    assumed = sentences(proposal)
    rows = with_dropped(proposal.rows(), counters, "whole numbers are no weights")
    checkpoint = checkpoint_of(rows, foreign, given, origin, assumed, mean=mean, std=std)
    return Match(checkpoint, rows, config_sources(proposal, rows), assumed)


def match_rows(
    foreign: Foreign,
    rows: RowsFile,
    given: Mapping[str, Any],
    *,
    origin: str,
    mean: Any = (),
    std: Any = (),
) -> Match:
    """A file by rows that somebody has written or edited."""
    rows = RowsFile({**rows.config, **given}, rows.rows)
    checkpoint = checkpoint_of(rows, foreign, given, origin, (), mean=mean, std=std)
    how = {name: "given" if name in given else "rows" for name in rows.config}
    return Match(checkpoint, rows, how)


def roles_of(foreign: Foreign, unused: tuple[str, ...] = ()) -> Roles:
    """The roles of a file's layers, or the reason why it is no ViT."""
    shapes = {n: tuple(t.shape) for n, t in foreign.tensors.items() if n not in unused}
    if any("{" in name or "}" in name for name in shapes):
        raise UserError(f"{foreign.source}: names of tensors must not contain braces")
    roles = find_roles(shapes)
    if roles is None or "patch" not in roles.outside:
        refuse_other(foreign, partial=roles)
    assert roles is not None
    refuse_other_norms(roles, foreign.source)
    return roles


def refuse_other_norms(roles: Roles, source: str) -> None:
    """Blocks with one norm, or with more than two, are not ours."""
    norms = [one.path for one in roles.left if one.shape == (roles.dim,) and "{" in one.path]
    if norms and "norm1" not in roles.block:
        raise UserError(
            f"{source}: its blocks have {len(norms)} norm{'s' * (len(norms) > 1)} that are used "
            f"({', '.join(norms)}), but Vitrail's ViT has two: one for the attention, one for the "
            "MLP"
        )


def assume_final_norm(proposal: Proposal) -> Proposal:
    """With a class token a norm before or after pooling is the same."""
    if "final_norm" in proposal.open and proposal.settings["pool"] == "cls":
        return proposal.choose({"final_norm": "tokens"})
    return proposal


def config_sources(proposal: Proposal, rows: RowsFile) -> dict[str, str]:
    return {name: proposal.how[name] for name in rows.config if name in proposal.how}


def checkpoint_of(
    rows: RowsFile,
    foreign: Foreign,
    given: Mapping[str, Any],
    origin: str,
    notes: tuple[str, ...],
    *,
    mean: Any = (),
    std: Any = (),
) -> Checkpoint:
    """Our tensors by these rows, total: every tensor of theirs is used, every one of ours made."""
    dialect = rows.dialect(mean=mean, std=std)
    more = [assumed_preparation(mean, std)]
    broken = [name for name, tensor in foreign.tensors.items() if not is_finite(tensor)]
    if broken:
        more.append(f"NaN or infinite values in {some(broken)}: the training run diverged")
    noted = replace(foreign, notes=(*foreign.notes, *notes, *more))
    try:
        return translate(noted, dialect, origin=origin, overrides=dict(given))
    except UserError as error:
        if "give grid=" not in str(error):
            raise
        if given.get("image_size"):
            raise UserError(
                f"{foreign.source}: its positions do not fit images of this size with one class "
                "token or none, which is what Vitrail's ViT has"
            ) from None
        raise UserError(
            f"{foreign.source}: the size of its images is unknown, as its positions make no square "
            "grid, or it has none: give image_size=(height, width)"
        ) from None


def is_finite(tensor: Tensor) -> bool:
    return not tensor.is_floating_point() or bool(tensor.float().isfinite().all())


def match_module(
    module: nn.Module,
    given: Mapping[str, Any],
    images: Images,
    *,
    source: str,
    origin: str,
    rows: RowsFile | None = None,
    mean: Any = (),
    std: Any = (),
) -> Match:
    """A module, with what its parts show and by running it beside ours; refused, with the first
    place where the two part, unless both compute the same."""
    foreign, peer = Foreign(source, tensors_of(module)), exact_copy(module)
    buffers = left_buffers(module, foreign)
    roles = roles_of(foreign, buffers)
    facts = facts_of(module, block_of(module, roles)) | dict(given)
    proposal = propose(roles, facts, source)
    used = without(foreign, buffers)
    pictures = images(*size_of(proposal, used, facts))
    unused = (*buffers, *unused_names(peer, pictures, foreign))
    if len(unused) > len(buffers):
        roles = roles_of(foreign, unused)
        facts = facts_of(module, block_of(module, roles)) | dict(given)
        facts.setdefault("image_size", tuple(pictures.shape[2:]))
        proposal = propose(roles, facts, source)
    theirs = trace_theirs(peer, roles, pictures)
    if rows is None:
        proposal = open_heads(proposal)
        used = without(foreign, unused)
        chosen, difference = choose(proposal, used, theirs, pictures, facts)
        refuse_difference(difference, source)
        arrangements = [arrangement_of(chosen.settings)]
        kept = tuple(name for name in unused if name in module.state_dict())
        rows = with_dropped(chosen.rows(), kept, UNUSED)
        how = sources_after(chosen, given)
    else:
        rows = RowsFile({**rows.config, **given}, rows.rows)
        arrangements = arrangements_in(rows)
        how = {name: "given" if name in given else "rows" for name in rows.config}
    notes = fixed_tables(module, foreign, unused)
    state = module.state_dict()
    whole = without(foreign, tuple(name for name in unused if name not in state))
    checkpoint = checkpoint_of(rows, whole, facts, origin, notes, mean=mean, std=std)
    ours = build_model(checkpoint, checkpoint.config, dtype=torch.float64)
    proof = prove(ours, theirs, pictures, roles.depth, source, arrangements)
    return Match(checkpoint, rows, how, (), proof)


def tensors_of(module: nn.Module) -> dict[str, Tensor]:
    """The state dict, and fixed tables that are no part of it."""
    state = {name: tensor.detach().cpu() for name, tensor in module.state_dict().items()}
    tables = {
        name: tensor.detach().cpu()
        for name, tensor in fixed_tensors(module).items()
        if name not in state and tensor.is_floating_point() and tensor.ndim in (2, 3)
    }
    return {**tables, **state}


def fixed_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Buffers, and tensors that are plain attributes of a part."""
    plain = {
        f"{path}.{name}".lstrip("."): value
        for path, part in module.named_modules()
        for name, value in vars(part).items()
        if isinstance(value, Tensor)
    }
    return {**plain, **dict(module.named_buffers())}


def without(foreign: Foreign, names: tuple[str, ...]) -> Foreign:
    return replace(foreign, tensors={n: t for n, t in foreign.tensors.items() if n not in names})


def whole_numbers(foreign: Foreign) -> tuple[str, ...]:
    """Tensors that hold no weights: counters and tables of places."""
    return tuple(n for n, t in foreign.tensors.items() if not t.is_floating_point())


def left_buffers(module: nn.Module, foreign: Foreign) -> tuple[str, ...]:
    """Buffers without a role, such as masks; what they do shows when both are compared."""
    buffers = set(fixed_tensors(module))
    counters = whole_numbers(foreign)
    shapes = {n: tuple(t.shape) for n, t in foreign.tensors.items() if n not in counters}
    roles = find_roles(shapes)
    left = {name for one in (roles.left if roles else ()) for name in (*one.weight, *one.bias)}
    if roles is None or left - buffers:  # then it is not for them that nothing fits
        shapes = {name: shape for name, shape in shapes.items() if name not in buffers}
        again = find_roles(shapes)
        if again is not None and not again.left:
            return tuple(n for n in foreign.tensors if n in buffers or n in counters)
    return tuple(n for n in foreign.tensors if n in counters or (n in left and n in buffers))


def fixed_tables(module: nn.Module, foreign: Foreign, unused: tuple[str, ...]) -> tuple[str, ...]:
    """A sentence for each table that the module makes, and its files do not have."""
    state = module.state_dict()
    tables = [name for name in foreign.tensors if name not in state and name not in unused]
    return tuple(f"{name} is made by the module: its files do not have it" for name in tables)


def block_of(module: nn.Module, roles: Roles) -> nn.Module | None:
    """The module that holds the first block, if there is one."""
    paths = [
        Pattern(one.path, THEIRS, pairs_of({})).format({"i": 0}) or ""
        for one in roles.block.values()
    ]
    parts = [path.split(".") for path in paths]
    common = []
    for words in zip(*parts, strict=False):
        if len(set(words)) > 1:
            break
        common.append(words[0])
    return dict(module.named_modules()).get(".".join(common)) if common else None


def size_of(
    proposal: Proposal, foreign: Foreign, facts: Mapping[str, Any]
) -> tuple[int, tuple[int, int]]:
    """The channels and the size of images, as a shallow model of the proposal has them."""
    shallow = proposal if "heads" in proposal.settings else proposal.choose({"heads": 1})
    rows = shallow.rows()
    used = {n: t for n, t in foreign.tensors.items() if not is_left(n, proposal.roles)}
    some = replace(foreign, tensors=used)
    config = checkpoint_of(rows, some, facts, "", ()).config
    return config.channels, config.image_size


def is_left(name: str, roles: Roles) -> bool:
    return any(name in (*one.weight, *one.bias) for one in roles.left)


def unused_names(peer: nn.Module, images: Tensor, foreign: Foreign) -> tuple[str, ...]:
    """Parameters that have no part in the output."""
    peer.requires_grad_(True)
    try:
        with exact(), torch.enable_grad():
            with redirect_stdout(sys.stderr):
                output = output_of(peer(images.clone()))
            if output is None or output.grad_fn is None:
                return ()
            output.sum().backward()
    except (Exception, SystemExit):  # their own code; what is wrong is said when it is compared
        return ()
    named = dict(peer.named_parameters(remove_duplicate=False))
    found = tuple(n for n in foreign.tensors if n in named and named[n].grad is None)
    peer.zero_grad(set_to_none=True)
    return found


def open_heads(proposal: Proposal) -> Proposal:
    """Every number of heads that divides their width, where the module does not tell."""
    if "heads" in proposal.settings:
        return proposal
    inner = proposal.roles.inner
    heads = tuple(n for n in range(1, min(inner, 64) + 1) if inner % n == 0)
    likely = tuple(sorted(heads, key=lambda n: abs(inner / n - 64)))
    return replace(
        proposal,
        settings={**proposal.settings, "heads": likely[0]},
        open={**proposal.open, "heads": likely},
        how={**proposal.how, "heads": "assumed"},
    )


def with_dropped(rows: RowsFile, names: tuple[str, ...], why: str) -> RowsFile:
    dropped = tuple({"theirs": name, "drop": why} for name in names)
    return RowsFile(rows.config, (*rows.rows, *dropped))


def sources_after(chosen: Proposal, given: Mapping[str, Any]) -> dict[str, str]:
    """Where each field of the config is from, once the module was run."""
    found = {}
    for name in chosen.rows().config:
        how = chosen.how.get(name, "file")
        tried = name in chosen.open
        module = how == "given" and name not in given
        found[name] = "equal when run" if tried else "module" if module else how
    return found


def refuse_difference(difference: Difference | None, source: str) -> None:
    if difference is None:
        return
    if difference.where == "file":
        raise UserError(difference.what)
    raise UserError(
        f"{source} computes something that Vitrail's ViT does not: {difference}: vitrail check "
        "shows the two side by side; if a row is wrong, print the rows without code by "
        "dry_run=True, edit them, and pass them as rows=FILE"
    )


def prove(
    ours: Model,
    theirs: Trace,
    images: Tensor,
    depth: int,
    source: str,
    arrangements: Sequence[Arrangement],
) -> Proof:
    """Both compute the same of real images, point by point, or the first difference is named."""
    traces = [trace_ours(ours, images, one) for one in arrangements]
    found = [first_difference(one, theirs, depth, last=True) for one in traces]
    agreeing, difference = next((one for one in found if one[1] is None), found[0])
    mine = traces[0]
    refuse_difference(difference, source)
    logits, others = mine["logits"][0], theirs["logits"][0]
    apart = float((logits - others).abs().max())
    assert agreeing <= sum(1 for _ in points(depth))
    return Proof(len(images), agreeing, apart, float(others.abs().max()))
