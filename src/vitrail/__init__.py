"""Vitrail, a vision transformer toolkit that you can look through: the public surface.

    >>> import vitrail
    >>> model = vitrail.create("vit_ti_16", num_classes=10)

Names are found when they are first used, so importing the package loads nothing else.
"""

from importlib import import_module
from typing import TYPE_CHECKING

__all__ = [
    "Client",
    "UserError",
    "__version__",
    "adopt",
    "bench",
    "capture",
    "check",
    "compare",
    "convert",
    "create",
    "doctor",
    "duplicates",
    "embed",
    "evaluate",
    "explain",
    "export",
    "figures",
    "info",
    "list_models",
    "load",
    "open_data",
    "plan",
    "predict",
    "pretrain",
    "probe",
    "register_dialect",
    "register_family",
    "report",
    "reproduce",
    "resume",
    "save",
    "search",
    "serve",
    "train",
]

if TYPE_CHECKING:  # type checkers and editors read these, and so refuse any other name
    from vitrail.core.errors import UserError
    from vitrail.data.sources import open_data
    from vitrail.explanation.capture import capture
    from vitrail.inference.client import Client
    from vitrail.models.catalogue import create, list_models, register_family
    from vitrail.serving.run import serve
    from vitrail.tasks.adopt import adopt
    from vitrail.tasks.bench import bench
    from vitrail.tasks.check import check
    from vitrail.tasks.compare import compare
    from vitrail.tasks.convert import convert
    from vitrail.tasks.doctor import doctor
    from vitrail.tasks.duplicates import duplicates
    from vitrail.tasks.embed import embed
    from vitrail.tasks.evaluate import evaluate
    from vitrail.tasks.explain import explain
    from vitrail.tasks.export import export
    from vitrail.tasks.figures import figures
    from vitrail.tasks.info import info
    from vitrail.tasks.plan import plan
    from vitrail.tasks.predict import predict
    from vitrail.tasks.pretrain import pretrain
    from vitrail.tasks.probe import probe
    from vitrail.tasks.report import report
    from vitrail.tasks.reproduce import reproduce
    from vitrail.tasks.resume import resume
    from vitrail.tasks.search import search
    from vitrail.tasks.train import train
    from vitrail.weights.load import load
    from vitrail.weights.native import save
    from vitrail.weights.registered import register_dialect

    __version__: str
else:
    _HOMES = {
        "Client": "vitrail.inference.client",
        "UserError": "vitrail.core.errors",
        "adopt": "vitrail.tasks.adopt",
        "bench": "vitrail.tasks.bench",
        "capture": "vitrail.explanation.capture",
        "check": "vitrail.tasks.check",
        "compare": "vitrail.tasks.compare",
        "convert": "vitrail.tasks.convert",
        "create": "vitrail.models.catalogue",
        "doctor": "vitrail.tasks.doctor",
        "duplicates": "vitrail.tasks.duplicates",
        "embed": "vitrail.tasks.embed",
        "evaluate": "vitrail.tasks.evaluate",
        "explain": "vitrail.tasks.explain",
        "export": "vitrail.tasks.export",
        "figures": "vitrail.tasks.figures",
        "info": "vitrail.tasks.info",
        "list_models": "vitrail.models.catalogue",
        "load": "vitrail.weights.load",
        "open_data": "vitrail.data.sources",
        "plan": "vitrail.tasks.plan",
        "predict": "vitrail.tasks.predict",
        "pretrain": "vitrail.tasks.pretrain",
        "probe": "vitrail.tasks.probe",
        "register_dialect": "vitrail.weights.registered",
        "register_family": "vitrail.models.catalogue",
        "report": "vitrail.tasks.report",
        "reproduce": "vitrail.tasks.reproduce",
        "resume": "vitrail.tasks.resume",
        "save": "vitrail.weights.native",
        "search": "vitrail.tasks.search",
        "serve": "vitrail.serving.run",
        "train": "vitrail.tasks.train",
    }

    def __getattr__(name: str) -> object:
        if name == "__version__":
            from importlib.metadata import version

            return version("vitrail")
        if name in _HOMES:
            return getattr(import_module(_HOMES[name]), name)
        raise AttributeError(f"module 'vitrail' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
