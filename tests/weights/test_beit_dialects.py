"""Every BEiT into every dialect of its family and back, and files that are not what they seem."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.models.kinds import perturbed
from tests.models.test_beit import KINDS, SMALL
from torch import Tensor

from vitrail import UserError, save
from vitrail.models.catalogue import fresh_passport
from vitrail.weights.checkpoint import translate
from vitrail.weights.convert import convert
from vitrail.weights.dialect import Foreign
from vitrail.weights.dialects import DIALECTS, choose
from vitrail.weights.translate import write

SPOKEN = [dialect for dialect in DIALECTS if dialect.family == "beit"]
every_dialect = pytest.mark.parametrize("dialect", SPOKEN, ids=lambda dialect: dialect.name)


@pytest.mark.sampled(2)
@every_dialect
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_refused_or_keeps_every_bit(kind: str, dialect: Any, tmp_path: Path) -> None:
    config = replace(KINDS[kind], image_size=(32, 32))
    model = perturbed(config)
    model.passport = fresh_passport(config)
    native = save(model, tmp_path / "native")
    if config.activation != "gelu" and "transformers" not in dialect.name:
        with pytest.raises(UserError, match="exact GELU"):
            convert(native, tmp_path / "out", to=dialect.name)
        return
    convert(native, tmp_path / "out", to=dialect.name)
    convert(tmp_path / "out", tmp_path / "again", to="vitrail", dialect=dialect.name)
    before, after = (load_file(tmp_path / n / "model.safetensors") for n in ("native", "again"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_a_librarys_name_means_its_dialect_for_the_family() -> None:
    square = replace(SMALL, image_size=(32, 32))
    assert choose("timm", square).name == "timm-beit"
    assert choose("transformers", square).name == "transformers-beit"
    assert choose("transformers-v4", square).name == "transformers-beit-v4"
    with pytest.raises(UserError, match="the transformers-beit dialect confuses rows and columns"):
        choose("transformers", SMALL)


HARM: dict[str, Callable[[Tensor], Tensor | None]] = {
    "missing": lambda _: None,
    "empty": lambda tensor: tensor[:0],
    "a number": lambda tensor: tensor.flatten()[0],
    "one row less": lambda tensor: tensor[1:],
    "one axis more": lambda tensor: tensor[None],
}


def refusal(foreign: Foreign, dialect: Any) -> str | None:
    """What a person hears of a file, or None if it can be read; nothing else may be raised."""
    try:
        translate(foreign, dialect, origin="test", overrides={})
    except UserError as error:
        return str(error)
    return None


@pytest.mark.sampled(2)
@every_dialect
@pytest.mark.parametrize("harm", HARM)
@pytest.mark.parametrize("stage", ["fine-tuned", "pre-trained"])
def test_a_damaged_file_is_told_in_one_sentence(stage: str, harm: str, dialect: Any) -> None:
    config = replace(KINDS[stage], image_size=(32, 32), depth=1)
    state = perturbed(config).state_dict()
    whole = write(dialect.table, state, config, unbound=dialect.unbound, where="test")
    assert refusal(Foreign("whole", whole), dialect) is None
    read_all_the_same = []
    for name in whole:
        damaged = HARM[harm](whole[name])
        tensors = {n: t for n, t in whole.items() if n != name}
        tensors |= {} if damaged is None else {name: damaged}
        said = refusal(Foreign("damaged", tensors), dialect)
        if said is None:
            read_all_the_same.append(name)
        else:
            assert said.startswith("damaged: ")
            assert "\n" not in said
    # nobody reads an index
    assert all("index" in name for name in read_all_the_same), read_all_the_same
