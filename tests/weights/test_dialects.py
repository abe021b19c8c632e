"""Every dialect can be found by people: in the docs, in errors, by its library's name."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.models.kinds import KINDS, SMALL

from vitrail import UserError
from vitrail.weights.dialects import DIALECTS, choose, dialects_called

DOCS = Path(__file__).parents[2] / "docs" / "dialects.md"


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
def test_the_docs_have_it(dialect) -> None:  # type: ignore[no-untyped-def]
    row = f"| `{dialect.name}` | {dialect.about} | {dialect.resize} | {dialect.suffix} |"
    assert row in DOCS.read_text(encoding="utf-8")


def test_names_are_distinct() -> None:
    assert len({dialect.name for dialect in DIALECTS}) == len(DIALECTS)


def test_a_library_means_whichever_dialect_fits() -> None:
    assert choose("transformers", SMALL).name == "transformers-vit"
    assert choose("transformers-v4", SMALL).name == "transformers-vit-v4"
    assert choose("transformers", KINDS["distilled"]).name == "transformers-deit"
    square = replace(SMALL, image_size=(32, 32))
    tower = replace(square, embed_norm=True, patch_bias=False, head_bias=False)
    assert choose("transformers", tower).name == "transformers-clip"
    # the hybrid is refused by the first dialect of its family
    with pytest.raises(UserError, match="transformers-vit dialect does not support"):
        choose("transformers", KINDS["hybrid"])


def test_a_library_has_one_dialect_for_each_kind_of_model() -> None:
    new, classic = (dialects_called(name) for name in ("transformers", "transformers-v4"))
    assert [d.name for d in new] == [d.name.removesuffix("-v4") for d in classic]
    assert {d.name for d in (*new, *classic)} == {
        d.name for d in DIALECTS if d.name.startswith("transformers-")
    }
    assert [d.name for d in dialects_called("torchvision")] == [
        "torchvision", "torchvision-resnet", "torchvision-mobilenetv2", "torchvision-swin",
        "torchvision-swinv2",
    ]  # fmt: skip


def test_a_wrong_name_gets_the_nearest_or_all() -> None:
    with pytest.raises(UserError, match="did you mean torchvision"):
        dialects_called("torchvison")
    with pytest.raises(UserError) as caught:
        dialects_called("zebra")
    assert all(dialect.name in str(caught.value) for dialect in DIALECTS)
