"""The table of docs/export.md says what exports where, and each of its cells is true."""

import pytest

from tests.exporters.table import NOT_RUN, export_cell, read_table
from tests.parity.test_every_family import FAMILIES
from vitrail.exporters.targets import TARGETS


def test_every_family_and_target_has_a_cell() -> None:
    assert set(read_table()) == {(family, target) for family in FAMILIES for target in TARGETS}


@pytest.mark.slow
@pytest.mark.parametrize(("family", "target"), list(read_table()))
def test_a_cell_is_what_exporting_gives(family: str, target: str) -> None:
    if read_table()[family, target] == NOT_RUN:
        pytest.skip("the table does not claim anything: python -m tests.exporters.table writes it")
    assert export_cell(family, target) == read_table()[family, target]
