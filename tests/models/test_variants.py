"""Every row of every family's table has the parameters and multiply-adds that it claims."""

from dataclasses import replace

import pytest

from vitrail.models.catalogue import FAMILIES, build_meta, variant_of
from vitrail.models.measure import count, measure

VARIANTS = {name: row for family in FAMILIES.values() for name, row in family.variants.items()}
# Counting multiply-adds takes up to a second, so the quick one is the smallest of each family.
QUICK = {
    name
    for family in FAMILIES.values()
    for name in sorted(family.variants, key=lambda name: family.variants[name].params)[:1]
}


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_parameters_are_those_of_the_table(family: str) -> None:
    table = {name: row.params for name, row in FAMILIES[family].variants.items()}
    assert {name: count(build_meta(VARIANTS[name].config)) for name in table} == table


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow]) for name in VARIANTS],
)
def test_multiply_adds_are_those_of_the_table(name: str) -> None:
    assert measure(VARIANTS[name].config).macs == VARIANTS[name].macs


@pytest.mark.parametrize("name", VARIANTS)
def test_a_config_is_called_by_a_row_that_it_equals(name: str) -> None:
    config = VARIANTS[name].config
    called = variant_of(config)  # DeiT's rows are ViT's too, and a size is no name
    assert called is not None
    assert replace(VARIANTS[called].config, image_size=config.image_size) == config
