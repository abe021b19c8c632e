"""An OpenVINO .xml file that `vitrail export` wrote, run on the CPU; it does not need torch."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrail.core.errors import UserError
from vitrail.core.exported import GRAPH, PASSPORT, Exported, check_exported, read_metadata
from vitrail.inference.checksum import find_weights, start_check

HEAD = 4096  # bytes in which an OpenVINO file says what it is


class OpenVinoFile:
    """The metadata of a file, and `run`: images as it reads them to its outputs by name."""

    engine = "openvino"

    def __init__(self, path: str | Path, *, threads: int | None = None) -> None:
        self.path = Path(path)
        check_exported(self.path)
        place, weights = find_weights(self.path, lambda path: path.with_suffix(".bin"))
        if not weights.is_file():
            raise UserError(f"{path}: its weights must lie beside it in {weights.name}")
        with self.path.open("rb") as file:  # OpenVINO would try every format, each with its log
            if b"<net" not in file.read(HEAD):
                raise UserError(
                    f"{path}: OpenVINO cannot read it: it has no <net> element: export the model "
                    "again"
                )
        checking = start_check(place, weights)  # during the import
        openvino = import_runtime()
        self.parts = (place, weights)
        self.has_checksum = checking.result()
        # by default it computes in bfloat16 or float16 where the processor can
        settings: dict[str, Any] = {"INFERENCE_PRECISION_HINT": "f32"}
        if threads is not None:
            settings["INFERENCE_NUM_THREADS"] = threads
        core = openvino.Core()
        try:
            self.model = core.read_model(place)
            self.compiled = core.compile_model(self.model, "CPU", settings)
        except RuntimeError as error:
            reason = (str(error).strip().splitlines() or ["unknown"])[-1]
            raise UserError(
                f"{path}: OpenVINO cannot read it: {reason}: export the model again"
            ) from None
        self.names = [port.get_any_name() for port in self.model.outputs]

    def metadata(self) -> Exported:
        known = self.model.get_rt_info()
        found = {
            key: str(self.model.get_rt_info(flat_key(key)).value)
            for key in (PASSPORT, GRAPH)
            if flat_key(key) in known
        }
        return read_metadata(found, where=str(self.path), has_checksum=self.has_checksum)

    def run(self, images: NDArray[Any]) -> dict[str, NDArray[np.float32]]:
        found = self.compiled.create_infer_request().infer([images])  # threads share no request
        return {name: np.array(found[place]) for place, name in enumerate(self.names)}


def flat_key(key: str) -> str:
    """A dot would make a section of its own.

    >>> flat_key("vitrail.passport")
    'vitrail_passport'
    """
    return key.replace(".", "_")


def import_runtime() -> Any:
    try:
        import openvino
    except ImportError:
        raise UserError(
            "an OpenVINO file is run by openvino, which is not installed: "
            "pip install 'vitrail[fast]'"
        ) from None
    return openvino
