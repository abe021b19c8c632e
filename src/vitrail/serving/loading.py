"""The model of a process: loaded from a checkpoint or an exported file, and described."""

import re
from dataclasses import asdict, replace
from pathlib import Path

import torch

from vitrail.core.errors import UserError
from vitrail.core.exported import is_exported
from vitrail.core.passport import Passport
from vitrail.inference.exported_model import ExportedModel
from vitrail.models.catalogue import create, list_models
from vitrail.models.model import Model
from vitrail.models.tokenizer import Tokenizer
from vitrail.serving.spec import ModelInfo, WorkerSpec
from vitrail.tasks.models import open_model
from vitrail.weights.digest import digest_of

MORE_IS_NEEDED = re.compile(r"\bgive [a-z_]+=")  # what a service has no option for
SEED = 0  # every process of an untrained model has the same weights


def load_model(spec: WorkerSpec) -> Model:
    """The model, ready to evaluate."""
    if spec.path in list_models() and not Path(spec.path).exists():
        if not spec.untrained:
            raise UserError(
                f"{spec.path} is an architecture without trained weights: give a checkpoint, or "
                "pass untrained=True to serve random weights"
            )
        torch.manual_seed(SEED)
        return create(spec.path).eval()
    if is_exported(spec.path):
        return ExportedModel(spec.path, threads=spec.threads)
    try:
        model = open_model(spec.path, device=spec.device).eval()
    except UserError as error:
        if MORE_IS_NEEDED.search(str(error)) is None:
            raise
        raise UserError(f"{error} (to vitrail convert, and serve what it writes)") from None
    if isinstance(model, Tokenizer):
        raise UserError(
            f"{spec.path}: a tokenizer cannot be served, it makes targets for vitrail pretrain: "
            "give a model that embeds or classifies images"
        )
    return model


def describe(
    model: Model, spec: WorkerSpec, engine: str, batch_sizes: tuple[int, ...] = ()
) -> ModelInfo:
    """What the service says about it."""
    passport, how = model.passport, model.passport.preprocessing
    classes = model.config.num_classes
    task = (
        "features" if not classes else "multi-label" if passport.multi_label else "classification"
    )
    exported = isinstance(model, ExportedModel)
    return ModelInfo(
        family=passport.family,
        task=task,
        image_size=how.size,
        channels=len(how.mean),
        classes=classes,
        labels=passport.labels,
        multi_label=passport.multi_label,
        parameters=0 if exported else sum(one.numel() for one in model.parameters()),
        features=count_features(model) if spec.features is None else spec.features,
        engine=model.file.engine if isinstance(model, ExportedModel) else engine,
        batch_sizes=batch_sizes,
        can_inspect=not exported,
        digest=spec.digest or digest_of(model),
        passport=asdict(public_passport(passport)),
    )


def public_passport(passport: Passport) -> Passport:
    """Without the paths of this machine, which origin and provenance may have."""
    return replace(passport, origin=replace(passport.origin, source="a service"), provenance={})


@torch.inference_mode()
def count_features(model: Model) -> int:
    """The length of an embedding; 0 for an exported file that has none."""
    if isinstance(model, ExportedModel) and "pooled" not in model.graph.outputs:
        return 0
    how, weights = model.passport.preprocessing, next(model.parameters())
    batch = (model.graph.batch or 1) if isinstance(model, ExportedModel) else 1
    found = model.features(weights.new_zeros(batch, len(how.mean), *how.size))
    return int(found.shape[1])
