"""Which pictures are meant by what a person gives, and in which order."""

import io
from pathlib import Path

import pytest

from vitrail import UserError
from vitrail.data.paths import STDIN, check_paths, list_images


def touch(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def test_a_directory_means_the_images_below_it_in_the_order_of_their_paths(tmp_path: Path) -> None:
    images = ["b.jpg", "a/2.png", "a/10.JPG", "a/deep/1.webp", "c.jpeg", "a.gif"]
    touch(
        tmp_path, *images, ".hidden.jpg", ".cache/x.jpg", "__MACOSX/b.jpg", "notes.txt", "a/k.csv"
    )
    found = list(list_images([str(tmp_path)]))
    assert found == [str(path) for path in sorted(tmp_path / name for name in images)]


def test_links_are_followed_and_circles_are_not(tmp_path: Path) -> None:
    touch(tmp_path, "a/1.jpg", "elsewhere/2.jpg")
    (tmp_path / "a" / "up").symlink_to(tmp_path / "a", target_is_directory=True)
    (tmp_path / "a" / "there").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    found = [Path(name).relative_to(tmp_path) for name in list_images([str(tmp_path / "a")])]
    assert [str(name) for name in found] == ["a/1.jpg", "a/there/2.jpg"]


def test_every_kind_in_the_order_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touch(
        tmp_path,
        "alone.jpg",
        "x/2.jpg",
        "x/1.jpg",
        "y/10.jpg",
        "y/2.jpg",
        "y/notes.txt",
        "z[1].jpg",
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", io.StringIO("one.jpg\n\n two words.jpg\r\n"))
    asked = [
        "alone.jpg",
        "y/*.jpg",
        STDIN,
        "https://example.org/a*b.jpg",
        "x",
        "z[1].jpg",
        "x/1.jpg",
    ]
    check_paths(asked)
    with pytest.raises(UserError, match=r"gone.jpg: no such file"):
        check_paths([*asked, "gone.jpg"])
    assert list(list_images(asked)) == [
        "alone.jpg",
        "y/10.jpg",
        "y/2.jpg",
        "one.jpg",
        " two words.jpg",
        "https://example.org/a*b.jpg",
        "x/1.jpg",
        "x/2.jpg",
        "z[1].jpg",
        "x/1.jpg",
    ]
    assert list(list_images(["**/1*.jpg"])) == ["x/1.jpg", "y/10.jpg"]


def test_nothing_is_listed_before_it_is_wanted(tmp_path: Path) -> None:
    touch(tmp_path, "a/1.jpg", "b/2.jpg")
    found = list_images([str(tmp_path)])
    assert next(found).endswith("1.jpg")
    (tmp_path / "b" / "2.jpg").rename(tmp_path / "b" / "3.jpg")
    assert next(found).endswith("3.jpg")


@pytest.mark.parametrize(("paths", "sentence"), [([], "no images"), (["no*.jpg"], "no file match")])
def test_what_cannot_mean_a_picture(paths: list[str], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        check_paths(paths)
