"""Answers without paths of this machine."""

import shutil
from pathlib import Path

import pytest

from tests.serving.running import Running, png, running
from vitrail.serving.launcher import Launcher
from vitrail.serving.paths import common_folder, hide_paths, public_name, public_values


@pytest.mark.parametrize(
    ("sentence", "hidden"),
    [
        ("/srv/models/pets/config.json: cannot be read", "config.json: cannot be read"),
        ("cannot open '/home/ann/my.pt' (gone)", "cannot open 'my.pt' (gone)"),
        ("~/runs/pets/best holds no model", "best holds no model"),
        (r"C:\Users\ann\pets.onnx: no model", "pets.onnx: no model"),
        ("it gives vectors, see /v1/embed", "it gives vectors, see /v1/embed"),
        ("https://example.org/a/b.png is gone", "https://example.org/a/b.png is gone"),
        ("3/4 of runs/pets/best", "3/4 of runs/pets/best"),
    ],
)
def test_absolute_paths_are_hidden_in_sentences(sentence: str, hidden: str) -> None:
    assert hide_paths(sentence) == hidden


def test_known_paths_may_have_spaces() -> None:
    known = ("/srv/my models/pets", "../all data")
    found = hide_paths("/srv/my models/pets/best and ../all data/cat: gone", known)
    assert found == "pets/best and all data/cat: gone"


def test_records_keep_the_last_part() -> None:
    values = {"data": "/srv/a b/pets", "made": ["runs/x", "../up/y"], "lr": 0.1, "note": "a /b/c"}
    assert public_values(values) == {
        "data": "pets", "made": ["runs/x", "y"], "lr": 0.1, "note": "a c"
    }  # fmt: skip


def test_names_are_those_below_the_folder() -> None:
    names = ["/data/pets/cat/1.png", "/data/pets/dog/1.png", "https://example.org/x/1.png"]
    folder = common_folder(names)
    shown = [public_name(name, folder) for name in names]
    assert shown == ["cat/1.png", "dog/1.png", "https://example.org/x/1.png"]
    for other in (["/data/1.png", "/srv/2.png"], ["/data/1.png", "b/2.png"]):
        assert common_folder(other) == ""
    assert public_name("/data/1.png", "") == "1.png"
    assert public_name("b/2.png", "") == "b/2.png"
    assert public_name("../b/2.png", common_folder(["../b/2.png"])) == "2.png"


@pytest.mark.slow
def test_a_service_whose_model_is_gone_names_no_path(
    launcher: Launcher, checkpoints: Path, tmp_path: Path
) -> None:
    """The process that looks inside starts later, when the file may have been moved away."""
    gone = tmp_path / "secret folder" / "pets"
    shutil.copytree(checkpoints / "pets", gone)
    with running(launcher, str(gone)) as service:
        shutil.rmtree(gone)
        for reply in (service.get("/v1/model"), service.form("/v1/explain", [png(1)])):
            assert reply.status in (422, 503)
            assert "secret" not in reply.json()["error"]


def test_no_answer_of_the_page_has_a_path(service: Running, checkpoints: Path) -> None:
    for path in ("/v1/model?model=pets", "/v1/models", "/v1/models/pets", "/v1/samples"):
        reply = service.get(path)
        assert reply.status == 200
        assert str(checkpoints) not in reply.body.decode()
