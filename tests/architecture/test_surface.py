"""The public surface is a contract: a change of it must change this file too."""

import inspect
import subprocess
import sys

import pytest

import vitrail
from vitrail.tasks.progress import silent

RUN_OPTIONS = (
    "out=None, recipe=None, model=None, start=None, epochs=None, steps=None, minutes=None, "
    "batch_size=None, lr=None, image_size=None, val_share=None, set=None, seed=None, workers=None, "
    "parallel=None, precision=None, device='auto', threads=None, processes=1, resume=False, "
    "dry_run=False, on_step=None, on_progress=<silent>"
)
# The one place to update when the surface changes on purpose: name -> parameters as written.
SIGNATURES = {
    "adopt": (
        "source, out=None, *, code=None, args=None, rows=None, images=None, mean=(), std=(), "
        "labels=None, overwrite=False, dry_run=False, **changes"
    ),
    "bench": (
        "*models, batch_size=(1, 8, 32), engine=None, guest=(), data=None, precision='float32', "
        "calibrate=(), speed_up=None, threads=None, seconds=5.0, clear=False, out=None, "
        "overwrite=False, on_progress=<silent>"
    ),
    "Client": "url, api_key=None, timeout=60.0, *, retry=True",
    "capture": "model, where='*', *, what='weights', reduce=None, differentiable=False",
    "check": "source, *, against=None, args=None, image_size=None, lang='en'",
    "compare": (
        "data, *, models=None, shares=None, seeds=None, image_sizes=None, recipe=None, "
        "epochs=None, steps=None, batch_size=None, lr=None, val_share=None, set=None, "
        "precision=None, device='auto', threads=None, workers=None, ray=False, address=None, "
        "out=None, dry_run=False, on_cell=None, on_progress=<silent>"
    ),
    "create": "name, **fields",
    "info": "source, *, batch_size=1, model=None, dialect=None, grid=None, **changes",
    "list_models": "pattern='*'",
    "load": (
        "source, *, model=None, dialect=None, grid=None, method=None, device=None, dtype=None, "
        "**changes"
    ),
    "convert": (
        "source, out, *, to='vitrail', model=None, dialect=None, grid=None, method=None, "
        "mean=(), std=(), overwrite=False, dry_run=False, **changes"
    ),
    "doctor": (
        "data, *, val_share=0.1, out=None, overwrite=False, threads=None, on_progress=<silent>"
    ),
    "duplicates": "directory, *, threshold=None, out=None, overwrite=False",
    "embed": (
        "model, images, *, out, tokens=False, exact=True, vector_precision='float32', "
        "batch_size=8, engine='auto', address=None, speed_up=None, native_resolution=False, "
        "max_tokens=None, device='auto', precision=None, calibrate=None, max_drop=1.0, "
        "threads=None, dry_run=False, on_progress=<silent>"
    ),
    "evaluate": (
        "model, data, *, split=None, corruptions=False, corrupted_images=None, resolutions=(), "
        "patch_sizes=(), by_index=False, batch_size=64, workers=0, engine='auto', speed_up=None, "
        "native_resolution=False, max_tokens=None, device='auto', threads=None, precision=None, "
        "calibrate=None, max_drop=1.0, seed=0, out=None, overwrite=False, dry_run=False, "
        "name=None, on_progress=<silent>"
    ),
    "explain": (
        "model, images, *, method='auto', target=None, layer=None, head=None, query=None, "
        "fusion=None, discard=None, verdict=True, checks=4, device='auto', threads=None, "
        "precision=None, out=None, html=None, overwrite=False, dry_run=False, name=None, "
        "on_progress=<silent>"
    ),
    "export": (
        "model, out, *, to=None, images=None, precision='float32', max_drop=1.0, "
        "preprocessing=False, attention=False, features=False, dynamic_size=False, "
        "speed_up=None, threads=None, runtime=None, overwrite=False, dry_run=False, "
        "on_progress=<silent>"
    ),
    "figures": (
        "model, data=None, *, what=None, split=None, max_images=128, ablated=4, batch_size=8, "
        "device='auto', threads=None, precision=None, out=None, overwrite=False, dry_run=False, "
        "name=None, on_progress=<silent>"
    ),
    "open_data": "spec, *, val_share=0.1, seed=0, folds=None, fold=None",
    "plan": (
        "model, *, gpus, memory=80.0, batch_size=4096, gpus_per_machine=8, image_size=None, "
        "precision='bfloat16', optimiser='adamw', ema=True, set=None"
    ),
    "predict": (
        "model, images, *, top=5, exact=True, batch_size=8, out=None, overwrite=False, "
        "engine='auto', address=None, speed_up=None, native_resolution=False, max_tokens=None, "
        "device='auto', precision=None, calibrate=None, max_drop=1.0, threads=None, "
        "dry_run=False, on_progress=<silent>"
    ),
    "probe": (
        "model, data, *, method='fewshot', split=None, shots=(1, 5, 10, 25), seeds=3, "
        "neighbours=(10, 20, 100, 200), steps=None, max_images=None, batch_size=64, workers=0, "
        "engine='auto', native_resolution=False, max_tokens=None, device='auto', threads=None, "
        "precision=None, seed=0, cache='runs/features', out=None, overwrite=False, dry_run=False, "
        "name=None, on_progress=<silent>"
    ),
    "search": (
        "directory, image, *, k=10, checkpoint=None, device='auto', threads=None, out=None, "
        "overwrite=False"
    ),
    "serve": (
        "*models, standby=(), host='127.0.0.1', port=8000, engine='auto', workers=1, threads=None, "
        "batch_size=32, max_wait_ms=5.0, queue=256, timeout=30.0, window=5.0, drain_seconds=0.5, "
        "device='auto', data=(), untrained=False, allow_host=(), trusted_host=(), "
        "api_key_file=None, telemetry=False, limits=None, on_ready=None"
    ),
    "pretrain": f"data, *, objective=None, tokenizer=None, {RUN_OPTIONS}",
    "register_dialect": "dialect",
    "register_family": "name, *, config, model, variants, aliases=None",
    "report": "*runs, out=None, overwrite=False",
    "reproduce": (
        "claim=None, *, data=None, weights=None, seeds=None, scale='quick', device='auto', "
        "threads=None, out=None, dry_run=False, on_progress=<silent>"
    ),
    "resume": (
        "run_directory, *, workers=None, parallel=None, device='auto', threads=None, processes=1, "
        "on_step=None, on_progress=<silent>"
    ),
    "save": "model, directory, *, overwrite=False",
    "train": "data, *, "
    + RUN_OPTIONS.replace(
        "image_size=None,", "image_size=None, native_resolution=False, max_tokens=None,"
    ).replace("minutes=None,", "minutes=None, folds=None,"),
}
NAMES = [
    "Client", "UserError", "__version__", "adopt", "bench", "capture", "check", "compare",
    "convert", "create",
    "doctor", "duplicates", "embed", "evaluate", "explain", "export", "figures", "info",
    "list_models", "load", "open_data", "plan", "predict", "pretrain", "probe", "register_dialect",
    "register_family", "report", "reproduce", "resume", "save", "search", "serve", "train",
]  # fmt: skip


def parameters_of(name: str) -> str:
    """Parameters of a public function as they are called: names, order, kinds and defaults."""
    signature = inspect.signature(getattr(vitrail, name))
    bare = [
        parameter.replace(annotation=inspect.Parameter.empty, default=shown(parameter.default))
        for parameter in signature.parameters.values()
    ]
    return str(inspect.Signature(bare)).removeprefix("(").removesuffix(")")


class Silent:
    def __repr__(self) -> str:
        return "<silent>"


def shown(default: object) -> object:
    """Without the address that a function's own text has."""
    return Silent() if default is silent else default


def test_names_are_frozen() -> None:
    assert vitrail.__all__ == NAMES
    assert dir(vitrail) == sorted(NAMES)


@pytest.mark.parametrize("name", SIGNATURES)
def test_signature_is_frozen(name: str) -> None:
    assert parameters_of(name) == SIGNATURES[name]


@pytest.mark.parametrize("name", SIGNATURES)
def test_every_parameter_has_a_type(name: str) -> None:
    signature = inspect.signature(getattr(vitrail, name))
    untyped = [p.name for p in signature.parameters.values() if p.annotation is p.empty]
    assert not untyped
    assert signature.return_annotation is not signature.empty


@pytest.mark.parametrize("name", ["UserError", *SIGNATURES])
def test_every_public_object_says_what_it_is(name: str) -> None:
    assert inspect.getdoc(getattr(vitrail, name))


def test_version_is_the_installed_one() -> None:
    command = [sys.executable, "-m", "vitrail.cli.app", "--version"]
    printed = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    assert printed.strip() == vitrail.__version__


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'restore'"):
        vitrail.restore  # type: ignore[attr-defined]  # noqa: B018
