"""Where OUT is a symbolic link, every writer writes what it stands for, and the link stays."""

from pathlib import Path

import pytest

from vitrail.core.errors import UserError
from vitrail.weights.atomic import (
    check_writable,
    follow_link,
    refuse_existing,
    write_directory,
    write_file,
    write_together,
)


def fill_file(draft: Path) -> None:
    draft.write_text("new")


def fill_folder(draft: Path) -> None:
    (draft / "a.txt").write_text("new")


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """Where links are, and where what they stand for is."""
    links, real = tmp_path / "links", tmp_path / "real"
    links.mkdir()
    real.mkdir()
    return links, real


@pytest.mark.parametrize("exists", [True, False])
def test_a_file_is_written_through_a_link(folders: tuple[Path, Path], exists: bool) -> None:
    links, real = folders
    (links / "chain.txt").symlink_to(real / "out.txt")
    out = links / "out.txt"
    out.symlink_to(links / "chain.txt")
    if exists:
        (real / "out.txt").write_text("old")
    check_writable(out)
    assert write_file(out, fill_file, overwrite=exists) == out
    assert out.is_symlink()
    assert (real / "out.txt").read_text() == "new"
    assert not (real / "out.txt").is_symlink()
    assert {path.name for path in links.iterdir()} == {"chain.txt", "out.txt"}
    assert [path.name for path in real.iterdir()] == ["out.txt"]


def test_a_directory_is_written_through_a_link(folders: tuple[Path, Path]) -> None:
    links, real = folders
    (real / "out").mkdir()
    (real / "out" / "a.txt").write_text("old")
    out = links / "out"
    out.symlink_to(real / "out")
    write_directory(out, fill_folder, overwrite=True)
    assert out.is_symlink()
    assert (real / "out" / "a.txt").read_text() == "new"
    assert [path.name for path in real.iterdir()] == ["out"]


def test_files_that_belong_together_lie_beside_each_other(folders: tuple[Path, Path]) -> None:
    links, real = folders
    out = links / "model.xml"
    out.symlink_to(real / "model.xml")

    def fill(draft: Path) -> None:
        (draft / "model.xml").write_text("new")
        (draft / "model.bin").write_text("new")

    write_together(follow_link(out), fill)
    assert out.read_text() == "new"
    assert sorted(path.name for path in real.iterdir()) == ["model.bin", "model.xml"]
    assert [path.name for path in links.iterdir()] == ["model.xml"]


def test_what_a_link_stands_for_is_not_overwritten_unasked(folders: tuple[Path, Path]) -> None:
    links, real = folders
    (real / "out.txt").write_text("old")
    out = links / "out.txt"
    out.symlink_to(real / "out.txt")
    with pytest.raises(UserError, match="already exists"):
        write_file(out, fill_file)
    with pytest.raises(UserError, match="already exists"):
        refuse_existing(out, overwrite=False)
    assert (real / "out.txt").read_text() == "old"


def test_a_link_that_leads_to_itself_is_one_sentence(tmp_path: Path) -> None:
    out = tmp_path / "out.txt"
    out.symlink_to(out)
    for call in (lambda: check_writable(out), lambda: write_file(out, fill_file, overwrite=True)):
        with pytest.raises(UserError, match="symbolic link that leads to itself"):
            call()
    assert out.is_symlink()
