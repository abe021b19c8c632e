"""Importing does nothing: no heavy module, warning, output, environment variable or thread."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import vitrail

HEAVY = {"torch", "torchvision", "matplotlib", "sklearn", "PIL", "transformers", "timm"}

# Runs in a fresh interpreter, because this one has imported torch long ago.
PROBE = """
import json, os, sys, threading

environment, threads = dict(os.environ), threading.active_count()
{act}
print(json.dumps({{
    "modules": sorted({{name.split(".")[0] for name in sys.modules}}),
    "environment": sorted(set(environment.items()) ^ set(os.environ.items())),
    "threads": threading.active_count() - threads,
}}))
"""


def probe(act: str) -> tuple[str, dict[str, Any]]:
    """What `act` prints, and what it leaves behind; a warning makes it fail."""
    command = [sys.executable, "-W", "error", "-c", PROBE.format(act=act)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    *printed, left_behind = result.stdout.splitlines()
    return "\n".join(printed), json.loads(left_behind)


def test_importing_vitrail_does_nothing() -> None:
    printed, left_behind = probe("import vitrail")
    assert printed == ""
    assert HEAVY.isdisjoint(left_behind["modules"])
    assert left_behind["environment"] == []
    assert left_behind["threads"] == 0


def test_the_surface_can_be_listed_without_loading_it() -> None:
    printed, left_behind = probe("import vitrail; print(*dir(vitrail)); vitrail.__version__")
    assert "load" in printed.split()
    assert HEAVY.isdisjoint(left_behind["modules"])


def test_help_never_imports_torch() -> None:
    """Every verb's help, one after the other in one interpreter; the first offender is named."""
    act = f"""
from vitrail.cli.app import VERBS, main
verbs = [verb.__name__ for verb in VERBS.values()]
for arguments in ([], ["--help"], ["--version"], *([verb, "--help"] for verb in verbs)):
    assert main(arguments) == 0, arguments
    heavy = {HEAVY!r} & sys.modules.keys()
    assert not heavy, (arguments, heavy)
"""
    printed, left_behind = probe(act)
    assert "explain" in printed
    assert left_behind["environment"] == []


def test_no_module_is_called_like_a_public_name() -> None:
    """A room that is called like a public function would take its place once it is imported."""
    rooms = {path.stem for path in Path(vitrail.__file__).parent.iterdir()}
    assert "models" in rooms
    assert rooms.isdisjoint(name for name in vitrail.__all__ if not name.startswith("__"))


@pytest.mark.slow
def test_public_names_are_functions_when_every_module_is_imported() -> None:
    act = """
import pkgutil
from importlib import import_module
import vitrail
from vitrail.core.torchvision import mend_torchvision
mend_torchvision()
extras = {"vitrail.inference.arrow", "vitrail.inference.on_ray", "vitrail.__main__"}
for module in pkgutil.walk_packages(vitrail.__path__, "vitrail."):
    if module.name not in extras:
        import_module(module.name)
public = [name for name in vitrail.__all__ if name not in ("UserError", "__version__")]
shadowed = [name for name in public if not callable(getattr(vitrail, name))]
assert not shadowed, shadowed
assert vitrail.create("vit_ti_16", depth=1, num_classes=2, image_size=32).config.depth == 1
assert "vit_ti_16" in vitrail.list_models("vit_ti*")
"""
    probe(act)
