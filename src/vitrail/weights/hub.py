"""hf-hub:owner/name, with or without @revision, through huggingface_hub and its cache."""

from pathlib import Path

from vitrail.core.errors import UserError
from vitrail.weights.files import SIDECARS, WEIGHTS

HUB = "hf-hub:"


def fetch(address: str) -> Path:
    """The directory in the local cache that holds a hub repository's checkpoint, fetched if need be."""
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HfHubHTTPError, HFValidationError
    except ImportError:
        raise UserError(
            f"{address}: reading from the hub needs huggingface_hub: pip install 'vitrail[hub]'"
        ) from None
    name, _, revision = address.removeprefix(HUB).partition("@")
    native = ("README.md", "manifest.json")
    for weights in (["*.safetensors", "*.safetensors.index.json"], ["*.bin", "*.bin.index.json"]):
        try:
            directory = Path(
                snapshot_download(
                    name,
                    revision=revision or None,
                    allow_patterns=[*weights, *SIDECARS, *native],
                )
            )
        except HFValidationError:
            raise UserError(f"{address}: expected hf-hub:owner/name") from None
        except (HfHubHTTPError, OSError) as error:
            first = next(iter(str(error).strip().splitlines()), type(error).__name__)
            raise UserError(
                f"{address}: not in the local cache, and the hub did not give it: download it on a machine "
                f"that can ('hf download {name}') and load that directory ({first})"
            ) from None
        if any((directory / weight).is_file() for weight in WEIGHTS):
            return directory
    raise UserError(f"{address}: this repository holds no checkpoint that is known: {WEIGHTS}")
