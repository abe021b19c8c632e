"""Collect the texts of HTML pages: what Python, templates and the script look up.

Python: the first argument of `page_text`, the title of a `Section`, the `kind` of a page, things
that are counted, and the constants below. Templates: the first argument of `t`, headings of tables,
names of facts. Script: the first argument of `t`.
"""

import ast
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

from jinja2 import nodes

from vitrail.explanation.equivariance_figure import HEADS
from vitrail.explanation.weight_figures import APART
from vitrail.pages.render import environment
from vitrail.pages.translation import counted, texts_in_script
from vitrail.tasks.claims.claim import Scale

SOURCE = Path(__file__).parents[1] / "src" / "vitrail"
TEMPLATES = "pages/templates"
# Constants whose texts pages show; of a dictionary its values.
CONSTANTS = ("SHARES", "TITLES", "METRICS")
# Names that pages look up as they come, and the file that they are in.
NAMES = {
    "tasks/run_report.py": ("objective", "best at step", "images per second", "written"),
    "tasks/explain_page.py": ("model", "family", "methods", "images", "chosen"),
    "tasks/explained_together.py": ("method", "verdict"),
    "tasks/evaluation.py": ("Most confident", "Lowest probability for the true class"),
    "tasks/report.py": ("state", "finished", "not finished"),
    "inference/nearest.py": ("given", "chosen from the data", "equal to within rounding"),
    "objectives/mae.py": ("original", "masked", "reconstructed"),
    "tasks/figures.py": ("attentions", "models"),
    "explanation/weight_figures.py": (
        *("component", "share of the variance", "kernels", "patches", "mean cosine"),
        *("layer", "largest bias", *APART),
    ),
    "explanation/activation_figures.py": (
        *("lowest head", "highest head", "uniform attention", "mean change", "largest change"),
        *("block", "variance", "median norm", "largest norm", "outliers"),
    ),
    "explanation/equivariance_figure.py": HEADS,
    "tasks/claims/claim.py": tuple(one.name.replace("_", " ") for one in fields(Scale)[1:]),
    "tasks/claims": (
        *("nearest head", "farthest head", "pixels", "pixels a side", "tokens", "milliseconds"),
        *("multiply-adds for an image", "checkpoint", "10-shot accuracy", "fine-tuned accuracy"),
        *("shifted by one patch", "shifted by one pixel", "positions", "weights", "published"),
        *("address", "sha256", "published sha256"),
    ),
    "pages/data_report.py": (
        "Broken",
        "Exact duplicates",
        "Near duplicates",
        "Leakage",
        "Conflicting labels",
        "Empty classes",
        "Balance",
        "Blank",
        "Not images",
    ),
    "pages/comparison.py": (
        *("data", "tested on", "runs", "seeds", "training time", "model", "labels", "images"),
        *("size", "accuracy", "95 % interval", "range of seeds", "parameters", "seconds"),
        *("first", "second", "difference", "p", "p, Holm", "run", "steps"),
    ),
    "pages/reproduction.py": (
        *("scale", "computing", "machine", "what the claim expects", "measured", "expected"),
        *("how", "training images", "image size", "multiply-adds", "training seconds"),
        *("shown", "contradicted", "not shown at this scale"),
    ),
    "tasks/bench.py": (
        *("engine", "precision", "batch", "images/s", "quartiles", "p50 ms", "p99 ms", "memory"),
        *("load s", "of peak", "merged", "int8 error", "same label", "failed"),
    ),
    "tasks/probe.py": (
        *("features", "held out", "chosen", "images of each class", "neighbours", "head"),
        "logistic regression",
    ),
}


def collect_page_texts() -> dict[str, str]:
    """Every text, and the file that it is in."""
    found: dict[str, str] = {}
    for file in sorted(SOURCE.rglob("*.py")):
        place = file.relative_to(SOURCE).as_posix()
        for text in python_texts(ast.parse(file.read_text(encoding="utf-8")), place):
            found.setdefault(text, place)
    for name in sorted(environment().list_templates()):
        for text in template_texts((SOURCE / TEMPLATES / name).read_text(encoding="utf-8")):
            found.setdefault(text, f"{TEMPLATES}/{name}")
    for text in texts_in_script():
        found.setdefault(text, "pages/script.js")
    for place, texts in NAMES.items():
        for text in texts:
            found.setdefault(text, place)
    return {text: place for text, place in found.items() if text}


def python_texts(tree: ast.AST, place: str = "pages/") -> Iterator[str]:
    """
    >>> list(python_texts(ast.parse('page_text("best {}" if a else "last {}", x)')))
    ['best {}', 'last {}']
    >>> list(python_texts(ast.parse('Section("a", "Curves", count(1, "class"))')))
    ['Curves', '{} classes']
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = node.func.id if isinstance(node.func, ast.Name) else ""
            if name == "page_text":
                yield from constants(node.args[0])
            elif name == "Section":
                yield from constants(node.args[1])
            elif name == "count" and len(node.args) == 2:
                yield from (counted(thing) for thing in constants(node.args[1]))
            elif name in ("render_page", "page_around"):
                kinds = (one.value for one in node.keywords if one.arg == "kind")
                yield from (text for kind in kinds for text in constants(kind))
        elif isinstance(node, ast.Assign | ast.AnnAssign) and place.startswith("pages/"):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = {one.id for one in targets if isinstance(one, ast.Name)}
            if names & set(CONSTANTS) and node.value is not None:
                yield from values(node.value)


def constants(node: ast.expr) -> Iterator[str]:
    """The text of an expression, or both where it chooses one."""
    match node:
        case ast.Constant(value=str(text)):
            yield text
        case ast.IfExp():
            yield from constants(node.body)
            yield from constants(node.orelse)


def values(node: ast.expr) -> Iterator[str]:
    """Texts of a table, without its keys."""
    match node:
        case ast.Constant(value=str(text)):
            yield text
        case ast.Dict():
            for one in node.values:
                yield from values(one)
        case ast.Tuple():
            for one in node.elts:
                yield from values(one)


def template_texts(source: str) -> Iterator[str]:
    """
    >>> list(template_texts('{{ t("of {}", n|count("run")) }}{{ m.table(["", "#size"], rows) }}'))
    ['of {}', '{} runs', 'size']
    """
    tree = environment().parse(source)
    for call in tree.find_all(nodes.Call):
        if isinstance(call.node, nodes.Name) and call.node.name == "t":
            yield from template_constants(call.args[0])
    for used in tree.find_all(nodes.Filter):
        if used.name == "count":
            yield from (counted(thing) for thing in template_constants(used.args[0]))
    for call in tree.find_all(nodes.Call):
        if isinstance(call.node, nodes.Getattr) and call.node.attr in ("table", "facts"):
            yield from filter(None, template_names(call.args[0]))


def template_constants(node: nodes.Expr | None) -> Iterator[str]:
    if isinstance(node, nodes.Const) and isinstance(node.value, str):
        yield " ".join(node.value.split())
    elif isinstance(node, nodes.CondExpr):
        yield from template_constants(node.expr1)
        yield from template_constants(node.expr2)


def template_names(node: nodes.Expr) -> Iterator[str]:
    """Headings of a list, or names of a dictionary."""
    if isinstance(node, nodes.List):
        parts = node.items
    else:
        parts = [one.key for one in node.items] if isinstance(node, nodes.Dict) else []
    for part in parts:
        yield from (text.removeprefix("#") for text in template_constants(part))
