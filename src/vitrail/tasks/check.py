"""`vitrail.check`: a hand-written ViT beside the reference, step by step; mistakes in words."""

import inspect
import linecache
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args
from unicodedata import east_asian_width

import torch
from torch import Tensor, nn

from vitrail.core.errors import UserError
from vitrail.core.html_text import escape_html
from vitrail.core.json_text import plain_values
from vitrail.explanation.check.findings import Expected, Finding
from vitrail.explanation.check.inspection import (
    Inspection,
    Step,
    Verdict,
    check_output,
    inspect_module,
    lively_copy,
    random_images,
)
from vitrail.explanation.check.sentences import Language, sentence, step_text, word
from vitrail.explanation.check.trace import Trace, trace
from vitrail.models.vit import ViTConfig
from vitrail.tasks.info import info
from vitrail.tasks.user_code import UserCode, build_module, is_code, read_code, running
from vitrail.weights.modules import inside

SIZE_WORDS = ("image", "img", "size", "side", "resolution", "res")
USUAL_SIZES = (32, 224, 28, 64, 96, 128, 48, 256, 384)
LOCATED = ("merge_layout",)  # differences that are one line of the code
SIZES = ("dim", "depth", "heads", "mlp_dim", "patch_size", "image_size", "num_classes")


@dataclass(frozen=True, repr=False)
class Check:
    """`verdict`: right, mistake, or unknown (different, and nothing known explains it). Findings
    have a sentence in `language`; `lines` are those of the file that findings name."""

    source: str
    against: str | None
    language: Language
    precision: str
    inspection: Inspection
    lines: Mapping[int, str]

    @property
    def verdict(self) -> Verdict:
        return self.inspection.verdict

    @property
    def findings(self) -> tuple[Finding, ...]:
        return self.inspection.findings

    @property
    def mistakes(self) -> tuple[Finding, ...]:
        return tuple(one for one in self.findings if one.kind != "difference")

    @property
    def differences(self) -> tuple[Finding, ...]:
        return tuple(one for one in self.findings if one.kind == "difference")

    @property
    def first(self) -> Step | None:
        """The first step that is not as the reference has it."""
        wrong = (one for one in self.inspection.steps if one.status in ("differs", "missing"))
        return next(wrong, None)

    def sentence(self, finding: Finding) -> str:
        """What a finding says."""
        values = dict(finding.values)
        if values.get("reference") == "paper":
            values["reference"] = word("paper", self.language)
        text = sentence(finding.code, self.language, values)
        if finding.kind == "unknown":
            return f"{step_text(finding.step, self.language)}: {text}"
        return text

    def place(self, finding: Finding) -> str:
        """The line of the file, and the blocks."""
        parts = []
        if finding.line is not None and self.lines.get(finding.line):
            parts.append(
                word("line", self.language, line=finding.line, text=self.lines[finding.line])
            )
        if finding.blocks:
            every = len(finding.blocks) == self.inspection.sizes["depth"]
            numbers = ", ".join(map(str, finding.blocks))
            where = word("every_block" if every else "blocks", self.language, numbers=numbers)
            parts.append(where)
        return "; ".join(parts)

    def facts(self) -> dict[str, Any]:
        """Plain values for JSON."""
        findings = [
            {**asdict(one), "sentence": self.sentence(one), "text": self.lines.get(one.line or 0)}
            for one in self.findings
        ]
        return plain_values(
            {
                "source": self.source,
                "against": self.against,
                "language": self.language,
                "verdict": self.verdict,
                "findings": findings,
                "first_difference": None if self.first is None else self.first.name,
                "reproduced": self.inspection.reproduced,
                "precision": self.precision,
                "sizes": dict(self.inspection.sizes),
                "steps": [asdict(one) for one in self.inspection.steps],
            }
        )

    def summary(self) -> list[str]:
        """The verdict, the mistakes and the differences."""
        lang = self.language
        lines = [self.source, self.sizes(), ""]
        number = len(self.mistakes)
        count = "one_mistake" if number == 1 else "mistakes"
        name = count if self.verdict == "mistake" else self.verdict
        lines.append(word(name, lang, number=number))
        for number, one in enumerate(self.mistakes, start=1):
            lines.append(f"  {number}. {self.sentence(one)}")
            if place := self.place(one):
                lines.append(f"     {place}")
        if self.differences:
            lines += ["", word("differences_title", lang)]
        for one in self.differences:
            lines.append(f"  - {self.sentence(one)}")
            if one.code in LOCATED and (place := self.place(one)):
                lines.append(f"    {place}")
        return lines

    def sizes(self) -> str:
        sizes = dict(self.inspection.sizes)
        rows, columns = sizes["patch_size"]
        patch = f"{rows}x{columns}"
        sizes["params"] = f"{sizes['params']:,}"
        return word("sizes", self.language, patch=patch, **sizes)

    def table(self, *, every: bool = False) -> list[tuple[str, ...]]:
        """Steps as rows under a title: name, shape, the values that differ most, by how much, line.
        Without `every` one block, that of the first difference."""
        titles = ("step", "shape", "yours", "reference", "difference", "where")
        rows = [tuple(word(title, self.language) for title in titles)]
        block = first_block(self.first)
        for step in self.inspection.steps:
            if every or not step.name.startswith("block ") or step.name.startswith(block):
                rows.append(self.row(step))
        return rows

    def row(self, step: Step) -> tuple[str, ...]:
        lang, shape = self.language, shape_text(step.reference_shape)
        if step.shape is None:
            shape = word(step.status, lang)
        elif step.shape != step.reference_shape:
            shape = f"{shape_text(step.shape)} ({word('reference', lang)} {shape})"
        amount = number_text(step.difference) if step.status == "differs" else ""
        line = "" if step.line is None else str(step.line)
        mark = word("first", lang) if step == self.first else ""
        values = number_text(step.value), number_text(step.reference_value)
        same = "0" if step.status == "same" else amount
        return step_text(step.name, lang), shape, *values, same, f"{line} {mark}".strip()

    def proof(self) -> str:
        """How exactly the reference reproduces the output."""
        name = "equal" if self.verdict == "right" else "proof"
        return word(name, self.language, apart=f"{self.inspection.reproduced:.1g}")

    def text(self, *, every: bool = False) -> str:
        """Verdict, mistakes, differences and the steps: all with `every`."""
        table = aligned(self.table(every=every))
        proof = ["", self.proof()] if self.inspection.is_explained else []
        return "\n".join([*self.summary(), "", *table, *proof])

    def __repr__(self) -> str:
        codes = ", ".join(one.code for one in self.mistakes) or "no mistake"
        return f"Check({self.source}: {self.verdict}, {codes})"

    def _repr_html_(self) -> str:
        return (
            f"<pre>{''.join(escape_html(line) + '<br>' for line in self.text().splitlines())}</pre>"
        )


def aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Rows in columns, as wide as a terminal shows them: a Korean letter takes two places."""
    widths = [max(map(display_width, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell + " " * (width - display_width(cell))
            for cell, width in zip(row, widths, strict=True)
        ).rstrip()
        for row in rows
    ]


def display_width(text: str) -> int:
    """
    >>> display_width("patch"), display_width("패치")
    (5, 4)
    """
    return sum(2 if east_asian_width(letter) in "WF" else 1 for letter in text)


def first_block(first: Step | None) -> str:
    """The block whose steps are shown."""
    name = "" if first is None else first.name
    return f"block {name.split(' ')[1]} " if name.startswith("block ") else "block 0 "


def number_text(number: float | None) -> str:
    return "" if number is None else f"{number:.3g}"


def shape_text(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))


def check(
    source: str | Path | nn.Module,
    *,
    against: str | Path | nn.Module | None = None,
    args: Mapping[str, Any] | None = None,
    image_size: int | tuple[int, int] | None = None,
    lang: Language = "en",
) -> Check:
    """Compare a ViT that you wrote, FILE.py:CLASS or a module in memory, with the reference of the
    same sizes, step by step, and say in words what is different and how to fix it.

    A file is run: it is your own code. `args` are the arguments of its class; `against` is a model
    name or a checkpoint of a ViT whose sizes and choices yours should have. A mistake is no
    exception: read `verdict`.
    """
    if lang not in get_args(Language):
        raise UserError(f'lang must be "en" or "ko", got {lang!r}')
    expected = read_expected(against)
    module, code = open_source(source, args or {})
    file = None if code is None else str(code.path)
    sizes = sizes_to_try(module, args, image_size)
    with as_user_error(code), asking_for_size(sizes, image_size):
        copied, traced, images = run_somewhere(module, file, sizes)
    check_output(traced.output)
    inspection = inspect_module(copied, traced, images, expected)
    named = {one.line for one in inspection.findings if one.line is not None}
    return Check(
        source=code.spec if code is not None and is_code(source) else type(module).__name__,
        against=None if against is None else expected.name,
        language=lang,
        precision=str(images.dtype).removeprefix("torch."),
        inspection=inspection,
        lines={} if code is None else {line: code.line(line) for line in sorted(named)},
    )


def open_source(
    source: str | Path | nn.Module, args: Mapping[str, Any]
) -> tuple[nn.Module, UserCode | None]:
    """The module, and the code that it is from."""
    if isinstance(source, nn.Module):
        if args:
            raise UserError("args= is for FILE.py:CLASS, got a module that is made already")
        module = inside(source)
        return module, code_of(module)
    if not is_code(source):
        raise UserError(
            f"check reads FILE.py:CLASS, such as my_model.py:ViT, or a module in memory, got "
            f"{source}: to read weights without code use vitrail adopt"
        )
    code = read_code(source)
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        return build_module(code, args), code


def code_of(module: nn.Module) -> UserCode | None:
    """The file, or the cell of a notebook, that a module's class is written in."""
    forward = inspect.unwrap(type(module).forward)
    name = getattr(getattr(forward, "__code__", None), "co_filename", None)
    if name is None or "torch" in Path(name).parts:  # nn.Sequential
        return None
    return UserCode(Path(name), type(module).__name__, "".join(linecache.getlines(name)), ())


@contextmanager
def as_user_error(code: UserCode | None) -> Iterator[None]:
    """An exception of their forward pass is one sentence with its line."""
    blank = UserCode(Path("the module"), "", "", ())
    with running(code or blank, "the forward pass"):
        yield


@contextmanager
def asking_for_size(sizes: Sequence[tuple[int, int]], given: object) -> Iterator[None]:
    """An error that may be one of sizes says which were tried, unless one was given."""
    try:
        yield
    except RuntimeError as error:
        if given is None:
            tried = ", ".join(f"{height}x{width}" for height, width in sizes)
            error.args = (f"{error} (tried images of {tried}: give image_size=N)",)
        raise


def read_expected(against: str | Path | nn.Module | None) -> Expected:
    """What the reference has: the paper's choices, or those of a model."""
    if against is None:
        return Expected()
    found = info(against)
    config = found.config
    if not isinstance(config, ViTConfig):
        family = type(config).__name__.removesuffix("Config")
        raise UserError(f"against must be a ViT, such as vit_b_16, got {found.source}, a {family}")
    sizes = {name: getattr(config, name) for name in SIZES}
    patch: Any = config.patch_size
    sizes["patch_size"] = (patch, patch) if isinstance(patch, int) else tuple(patch)
    return Expected(
        name=found.source,
        activation=config.activation,
        norm_eps=config.norm_eps,
        pool=config.pool,
        norm_placement=getattr(config, "norm_placement", "pre"),
        qkv_bias=config.qkv_bias != "none",
        sizes=sizes,
    )


def sizes_to_try(
    module: nn.Module, args: Mapping[str, Any] | None, image_size: int | tuple[int, int] | None
) -> list[tuple[int, int]]:
    """Image sizes, the likeliest first: what was asked for, arguments, defaults, usual ones."""
    if image_size is not None:
        return [pair_of_sides(image_size)]
    found: list[Any] = []
    defaults = {
        name: one.default
        for name, one in inspect.signature(type(module).__init__).parameters.items()
    }
    for values in (args or {}, {**vars(module)}, defaults):
        words = {name: value for name, value in values.items() if name.startswith(SIZE_WORDS)}
        found += [value for name, value in words.items() if "patch" not in name]
    for part in (getattr(module, "config", None), *module.modules()):
        found += [getattr(part, name, None) for name in ("image_size", "img_size")]
    pairs = [tuple(one) if isinstance(one, list | tuple) else (one, one) for one in found]
    named = [one for one in pairs if len(one) == 2 and all(type(side) is int for side in one)]
    usual = [(side, side) for side in USUAL_SIZES]
    return list(dict.fromkeys([*named, *sizes_of_positions(module), *usual]))


def pair_of_sides(size: Any) -> tuple[int, int]:
    sides = tuple(size) if isinstance(size, tuple | list) else (size, size)
    if len(sides) != 2 or not all(type(side) is int and side >= 1 for side in sides):
        raise UserError(f"image_size must be one or two numbers of at least 1, got {size!r}")
    return sides[0], sides[1]


def sizes_of_positions(module: nn.Module) -> Iterator[tuple[int, int]]:
    """Square images whose patches are as many as a table of the module has rows, with or without
    one for a class token."""
    conv = next((part for part in module.modules() if isinstance(part, nn.Conv2d)), None)
    if conv is None:
        return
    for part in module.modules():
        if isinstance(part, nn.Linear | nn.Conv2d | nn.LayerNorm | nn.MultiheadAttention):
            continue
        for table in (*part.parameters(recurse=False), *part.buffers(recurse=False)):
            rows = table.shape[-2] if table.ndim > 1 else 0
            for patches in (rows - 1, rows):
                side = math.isqrt(max(patches, 0))
                if side > 1 and side * side == patches:
                    yield side * conv.kernel_size[0], side * conv.kernel_size[-1]


def run_somewhere(
    module: nn.Module, file: str | None, sizes: list[tuple[int, int]]
) -> tuple[nn.Module, Trace, Tensor]:
    """Run a copy at the first image size, number of channels and precision that it takes; if it
    takes none, the error of the first is raised."""
    first: Exception | None = None
    conv = next((part for part in module.modules() if isinstance(part, nn.Conv2d)), None)
    channels = (3, 1) if conv is None else (conv.in_channels,)
    for size in sizes:
        for count in channels:
            for dtype in (torch.float64, torch.float32):
                copied = lively_copy(module, dtype)
                images = random_images(count, size, dtype)
                try:
                    return copied, trace(copied, images.clone(), file), images
                except Exception as error:
                    first = first or error
    assert first is not None
    raise first
