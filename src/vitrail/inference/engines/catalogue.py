"""The engines by name, and those that can be used here."""

from vitrail.core.errors import UserError, nearest
from vitrail.inference.engines.compiled import Compiled
from vitrail.inference.engines.onnxruntime import OnnxRuntime
from vitrail.inference.engines.openvino import OpenVino
from vitrail.inference.engines.runner import EngineLibrary

AUTO, EAGER, RAY = "auto", "eager", "ray"

# In the order in which they are tried: what is built quickest comes first.
_LIBRARIES: tuple[EngineLibrary, ...] = (OnnxRuntime(), OpenVino(), Compiled())
LIBRARIES = {engine.name: engine for engine in _LIBRARIES}
ENGINES = (AUTO, EAGER, *LIBRARIES)  # that compute in this process


def check_engine(name: str) -> str:
    """The engine of that name for this process, which must be installed.

    >>> check_engine("eager")
    'eager'
    """
    before, _, _ = split_name(name)
    if before == RAY:
        raise UserError(
            f"the engine {name} computes for predict and embed alone: use {', '.join(ENGINES)}"
        )
    if name not in ENGINES:
        raise UserError(f"unknown engine {name!r}, {nearest(name, [*ENGINES, RAY])}")
    if name in LIBRARIES and not LIBRARIES[name].is_installed():
        needs = LIBRARIES[name].needs
        raise UserError(f"the engine {name} is not installed: {needs}, or use the engine eager")
    return name


def split_name(name: object) -> tuple[str, str, str]:
    """A name at its colon; refuses what is no name."""
    if not isinstance(name, str):
        raise UserError(f"engine must be a name, got {name!r}: use {', '.join(ENGINES)}")
    return name.partition(":")


def split_ray(name: str) -> tuple[bool, str]:
    """Whether Ray computes, and the engine of each of its processes, or of this one.

    >>> split_ray("ray"), split_ray("ray:openvino"), split_ray("auto")
    ((True, 'eager'), (True, 'openvino'), (False, 'auto'))
    """
    before, colon, rest = split_name(name)
    if name == RAY:
        return True, EAGER
    if before == RAY and colon:
        if rest == AUTO:
            raise UserError(
                "processes of Ray may run on different machines: name their engine, as ray:openvino"
            )
        return True, check_engine(rest)
    return False, check_engine(name)


def installed_engines() -> list[str]:
    """The engines that can be used here, in the order in which they are tried."""
    return [EAGER, *(name for name, engine in LIBRARIES.items() if engine.is_installed())]
