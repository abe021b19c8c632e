"""owner/name on the hub, with or without @revision, through huggingface_hub and its cache.

hf-hub:owner/name is explicit; owner/name alone is an id where no such file is here.
"""

import re
from pathlib import Path

from vitrail.core.addresses import is_address
from vitrail.core.errors import UserError
from vitrail.weights.files import SIDECARS, WEIGHTS

HUB = "hf-hub:"
OWNER_NAME = r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(@[\w./-]+)?"
NATIVE = ("README.md", "manifest.json")
# Pickles are fetched only where a repository has nothing better.
NO_WEIGHTS = "a service does not give the model's weights, which this needs: give the checkpoint"
KINDS = (("*.safetensors", "*.safetensors.index.json"), ("*.bin", "*.bin.index.json"))


def located(source: str | Path) -> Path:
    """Where a checkpoint lies on this machine, brought here from the hub if it is there."""
    if isinstance(source, str) and is_address(source):
        raise UserError(f"{source}: {NO_WEIGHTS}")
    return fetch(str(source)) if is_hub_id(source) else Path(source)


def is_hub_id(source: str | Path) -> bool:
    """Whether a source is on the hub: it has the prefix, or looks like owner/name and neither that
    path nor a directory called like its owner is here."""
    if str(source).startswith(HUB):
        return True
    if not isinstance(source, str) or not re.fullmatch(OWNER_NAME, source):
        return False
    return not Path(source).exists() and not Path(source).parent.exists()


def fetch(address: str) -> Path:
    """The directory in the local cache with a hub repository's checkpoint, fetched if need be."""
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HFValidationError
    except ImportError:
        raise UserError(
            f"{address}: reading from the hub needs huggingface_hub: pip install 'vitrail[hub]'"
        ) from None
    name, _, revision = address.removeprefix(HUB).partition("@")
    for weights in KINDS:
        patterns = [*weights, *SIDECARS, *NATIVE]
        try:
            found = snapshot_download(name, revision=revision or None, allow_patterns=patterns)
        except HFValidationError:
            raise UserError(f"{address}: expected hf-hub:owner/name") from None
        except Exception as error:  # a network, a proxy and a cache fail in ways of their own
            first = next(iter(str(error).strip().splitlines()), type(error).__name__)
            raise UserError(
                f"{address}: not in the local cache, and could not be downloaded: fetch it "
                f"where you can ('hf download {name}') and load that directory ({first})"
            ) from None
        if any((Path(found) / weight).is_file() for weight in WEIGHTS):
            return Path(found)
    known = ", ".join(WEIGHTS)
    raise UserError(f"{address}: this repository holds no checkpoint that is known: {known}")
