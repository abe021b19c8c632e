"""One name for what a model computes."""

import hashlib
import json
from dataclasses import asdict
from typing import Any

import torch

from vitrail.models.model import Model


def digest_of(model: Model) -> str:
    """The same for models that compute the same from the same image, also behind an address."""
    if model.served_digest:
        return model.served_digest
    digest = hashlib.sha256()
    passport = model.passport
    facts: dict[str, Any] = {
        "family": passport.family,
        "config": asdict(model.config),
        "preprocessing": asdict(passport.preprocessing),
    }
    if model.merged_tokens:
        facts["merged_tokens"] = model.merged_tokens
    digest.update(json.dumps(facts, sort_keys=True, default=str).encode())
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
