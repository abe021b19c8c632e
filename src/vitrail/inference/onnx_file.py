"""An .onnx file that `vitrail export` wrote, run by ONNX Runtime; neither needs torch."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrail.core.errors import UserError
from vitrail.core.exported import Exported, check_exported, read_metadata
from vitrail.inference.checksum import find_weights, start_check


class OnnxFile:
    """The metadata of a file, and `run`: images as it reads them to its outputs by name."""

    engine = "onnxruntime"

    def __init__(self, path: str | Path, *, threads: int | None = None) -> None:
        self.path = Path(path)
        check_exported(self.path)
        place, weights = find_weights(self.path, weights_path)
        checking = start_check(place, weights)  # while the runtime is imported
        runtime = import_runtime()
        self.parts = (place, weights) if weights.is_file() else (place,)
        self.has_checksum = checking.result()
        options = runtime.SessionOptions()
        options.log_severity_level = 3  # errors: warnings are about the graph's insides
        # threads that wait for work sleep: what they would win by spinning, other work loses
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        if threads is not None:
            options.intra_op_num_threads = threads
        try:
            self.session = runtime.InferenceSession(
                str(place), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # its exceptions have no common class but this
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise UserError(
                f"{path}: ONNX Runtime cannot read it: {reason}: export the model again"
            ) from None
        self.names = [one.name for one in self.session.get_outputs()]

    def metadata(self) -> Exported:
        found = self.session.get_modelmeta().custom_metadata_map
        return read_metadata(found, where=str(self.path), has_checksum=self.has_checksum)

    def run(self, images: NDArray[Any]) -> dict[str, NDArray[np.float32]]:
        (given,) = self.session.get_inputs()
        found = self.session.run(self.names, {given.name: images})
        return dict(zip(self.names, found, strict=True))


def weights_path(path: Path) -> Path:
    """Where the weights of a file are that is too large to hold them."""
    return path.with_name(f"{path.name}.data")


def import_runtime() -> Any:
    try:
        import onnxruntime  # type: ignore[import-untyped]  # ships no types
    except ImportError:
        raise UserError(
            "an .onnx file is run by onnxruntime, which is not installed: "
            "pip install 'vitrail[onnx]'"
        ) from None
    return onnxruntime
