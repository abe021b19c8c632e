"""The class that a file of weights is of: made with arguments, filled with the tensors."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from vitrail.core.errors import UserError
from vitrail.models.vit import ViTConfig
from vitrail.tasks.user_code import build_module, read_code
from vitrail.weights.adopt.match import match_file
from vitrail.weights.dialect import Foreign
from vitrail.weights.files import PREFIXES
from vitrail.weights.translate import some

# What arguments of a constructor are called, by the field of ours that they are.
ARGUMENTS: dict[str, tuple[str, ...]] = {
    "image_size": ("image_size", "img_size", "size", "img", "side", "resolution", "input_size"),
    "patch_size": ("patch_size", "patch", "p"),
    "num_classes": ("num_classes", "n_classes", "classes", "n_class", "num_labels", "nb_classes"),
    "dim": ("dim", "embed_dim", "hidden_dim", "hidden_size", "width", "d_model", "emb_size", "d",
            "emb_dim", "embedding_dim"),
    "depth": ("depth", "num_layers", "layers", "n_layers", "n_layer", "n_blocks", "num_blocks"),
    "mlp_dim": ("mlp_dim", "d_ff", "ffn", "hidden", "intermediate_size", "mlp_size", "f"),
    "channels": ("channels", "in_channels", "in_chans", "c"),
}  # fmt: skip
RATIOS = ("mlp_ratio", "expansion", "forward_expansion", "expand")


def load_code(code: str | Path | nn.Module, args: Mapping[str, Any], foreign: Foreign) -> nn.Module:
    """The module with the tensors of the file; its class is asked for arguments in one sentence."""
    examples = likely_arguments(foreign)
    if isinstance(code, nn.Module):
        if args:
            raise UserError("args must come with a class in a file, and code is a module here")
        module, name = code, type(code).__name__
    else:
        parsed = read_code(code)
        module, name = build_module(parsed, args, examples), parsed.class_name
    fill_module(module, name, foreign, examples)
    return module.eval()


def likely_arguments(foreign: Foreign) -> dict[str, Any]:
    """The sizes in a file under the names that constructors have for them."""
    try:
        config = match_file(foreign, {"heads": 1}, origin="").checkpoint.config
    except UserError:
        return {}
    assert isinstance(config, ViTConfig)
    sides = config.image_size
    values: dict[str, Any] = {name: getattr(config, name) for name in ARGUMENTS}
    values["image_size"] = sides[0] if sides[0] == sides[1] else sides
    found = {name: values[field] for field, names in ARGUMENTS.items() for name in names}
    ratio = config.mlp_dim / config.dim
    return found | dict.fromkeys(RATIOS, int(ratio) if ratio.is_integer() else ratio)


def fill_module(
    module: nn.Module, name: str, foreign: Foreign, examples: Mapping[str, Any]
) -> None:
    """Load every tensor, or say in one sentence what does not fit."""
    wanted = {key: tuple(tensor.shape) for key, tensor in module.state_dict().items()}
    tensors = with_names_of(wanted, foreign.tensors)
    apart = [key for key in wanted if key in tensors and tuple(tensors[key].shape) != wanted[key]]
    missing = [key for key in wanted if key not in tensors]
    extra = [key for key in tensors if key not in wanted]
    if apart:
        first = apart[0]
        known = [f"{key} {examples[key]}" for key in ("image_size", "patch_size", "dim", "depth",
                 "mlp_dim", "num_classes") if key in examples]  # fmt: skip
        listed = f" (it has {', '.join(known)})" if known else ""
        raise UserError(
            f"{foreign.source}: {first} has the shape {tuple(tensors[first].shape)}, the {name} "
            f"that was made has {wanted[first]}: give args= that make the model of this "
            f"file{listed}"
        )
    if missing or extra:
        sides = [f"{len(extra)} tensors that {name} does not have ({some(extra)})"] if extra else []
        if missing:
            sides.append(f"{len(missing)} tensors of {name} missing ({some(missing)})")
        raise UserError(f"{foreign.source}: {' and '.join(sides)}: is it another class?")
    module.load_state_dict(tensors)


def with_names_of(wanted: Mapping[str, object], tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors, with the prefix that reading them took off where the class has it by itself."""
    for prefix in PREFIXES:
        if wanted and all(name.startswith(prefix) for name in wanted):
            return {f"{prefix}{name}": tensor for name, tensor in tensors.items()}
    return tensors
