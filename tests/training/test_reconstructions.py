"""Sheets of reconstructions: written by step, found again, also those of earlier versions."""

from pathlib import Path

import torch

from vitrail.core.passport import Preprocessing
from vitrail.training.reconstructions import sheets_in, write_sheet


def test_sheets_are_found_by_step_in_the_old_and_the_new_folder(tmp_path: Path) -> None:
    how = Preprocessing(size=(4, 4), mean=(0.5,), std=(0.5,))
    old = write_sheet({"original": torch.zeros(2, 1, 4, 4)}, how, tmp_path, step=3)
    assert old.parent.name == "reconstructions"
    (tmp_path / "pictures").mkdir()
    old.rename(tmp_path / "pictures" / old.name)
    new = write_sheet({"original": torch.zeros(2, 1, 4, 4)}, how, tmp_path, step=20)
    (tmp_path / "reconstructions" / "mine.png").write_bytes(b"")
    assert sheets_in(tmp_path) == {3: tmp_path / "pictures" / old.name, 20: new}
