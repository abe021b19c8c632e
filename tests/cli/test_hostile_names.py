"""Labels, files and directories may be called anything: no verb lets that steer a terminal or a
page."""

import csv
import json
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from tests.inference.photos import small_model, write_photos

from vitrail import load, save
from vitrail.cli.app import main

# A title for the terminal, its screen cleared, a line of its own, colours of rich, text that runs
# backwards, an element of a page, an attribute's end.
EVIL = "\x1b]0;x\x07\x1b[2J\r\nok [red]b[/red] \u202eexe\u2069 \x9b <script>alert(1)</script> \"'&"
NAME = EVIL.replace("/", "-")  # of a file
VERBS = {
    "info": "info {model}",
    "evaluate": "evaluate {model} {data} --split test --resolutions 16,17 --out {out}",
    "probe": "probe {model} {data} --method knn --neighbours 1 --no-cache --out {out}",
    "doctor": "doctor {data} --out {out}",
    "predict": "predict {model} {photos}",
    "predict to a file": "predict {model} {photos} --out {out}/labels.csv",
    "embed": "embed {model} {photos} --out {out}",
    "search": "search {embedded} {photo}",
    "duplicates": "duplicates {embedded}",
    "explain": "explain {model} {photos} --checks 1 --method rollout --out {out}",
    "figures": "figures {model} {data} --max-images 3 --ablated 0 --out {out}",
    "explain together": "explain {model} {photos} --and {model} --no-verdict --out {out}",
    "compare": (
        "compare {data} --models vit_ti_16:image_size=16,dim=16,depth=1,heads=1,mlp_dim=16 "
        "--seeds 1 --steps 2 --batch-size 2 --out {out}"
    ),
    "convert": "convert {model} {out} --set num_classes=3",
    "train": "train {data} --steps 2 --batch-size 2 --out {out}",
    "pretrain": "pretrain {data} --steps 2 --batch-size 2 --out {out}",
}
# seconds: once is enough
SLOW = (
    "evaluate", "explain", "explain together", "compare", "figures", "train", "pretrain",
)  # fmt: skip
MISTAKES = {
    "models": "models {evil}",
    "info": "info {evil}",
    "predict": "predict {model} {evil}",
    "evaluate": "evaluate {model} {data} --split {evil}",
    "explain": "explain {model} {photos} --target {evil}! --out {out}",
    "train": "train {evil}",
    "compare": "compare {data} --models {evil} --out {out}",
    "reproduce": "reproduce {evil} --out {out}",
    "an option": "predict {model} --{evil}",
    "a verb": "{evil}",
}


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Everything is called so: the classes, the files, the directories, a broken file."""
    folder = tmp_path_factory.mktemp("inputs") / NAME
    model = small_model()
    labels = (f"{NAME} 0", f"{NAME} 1", EVIL, "dog", "eel")
    changes = (f"note {EVIL}",)
    origin = replace(model.passport.origin, source=EVIL, changes=changes)
    model.passport = replace(model.passport, labels=labels, origin=origin)
    saved = save(model, folder / "model")
    data = folder / "data"
    for part in ("train", "val", "test"):
        for number in range(2):
            label = f"{NAME} {number}"
            written = write_photos(data / part / label, 3)
            Path(written[1]).rename(data / part / label / f"{NAME}.jpg")
            Path(written[2]).rename(data / part / label / f"broken {NAME}.jpg").write_bytes(b"no")
    photos = str(data / "test" / f"{NAME} 0")
    assert main(["embed", str(saved), photos, "--out", str(folder / "embedded")]) == 0
    return {
        "model": str(saved),
        "data": str(data),
        "photos": photos,
        "photo": f"{photos}/{NAME}.jpg",
        "embedded": str(folder / "embedded"),
        "evil": EVIL,
    }


def words_of(line: str, places: dict[str, str], out: Path) -> list[str]:
    return [word.format(**places, out=out) for word in line.split()]


def check_printed(*texts: str) -> None:
    for text in texts:
        assert all(line.isprintable() for line in text.split("\n")), repr(text)


class Elements(HTMLParser):
    """The elements and attributes of a page, and what is in its scripts."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = ""
        self.scripts = list[str]()
        self.handlers = list[str]()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.inside = tag
        self.handlers += [name for name, _ in attributes if name.startswith("on")]

    def handle_data(self, data: str) -> None:
        if self.inside == "script":
            self.scripts.append(data)

    def handle_endtag(self, tag: str) -> None:
        self.inside = ""


def check_page(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    page = Elements()
    page.feed(text)
    assert not [script for script in page.scripts if "alert" in script]
    assert "<script>alert" not in text
    assert not page.handlers
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", text), "controls"
    assert "\u202e" not in text, "it would turn what follows around"


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("verb", "as_json"),
    [(verb, False) for verb in VERBS] + [(verb, True) for verb in VERBS if verb not in SLOW],
)
def test_nothing_steers_a_terminal_or_a_page(
    verb: str,
    as_json: bool,
    places: dict[str, str],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    out = tmp_path / NAME
    code = main([*words_of(VERBS[verb], places, out), *(["--json"] if as_json else [])])
    printed = capfd.readouterr()
    assert code == 0, printed.err
    check_printed(printed.out, printed.err)
    if as_json:
        for line in printed.out.splitlines():
            json.loads(line)
    for page in out.rglob("*.html"):
        check_page(page)
    if verb == "predict to a file":
        with (out / "labels.csv").open(newline="", encoding="utf-8") as file:
            names = {row["name"] for row in csv.DictReader(file)}
        assert places["photo"] in names, "files keep names as they are"


@pytest.mark.sampled(2)
@pytest.mark.parametrize("mistake", MISTAKES)
def test_nor_does_a_mistake(
    mistake: str, places: dict[str, str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(words_of(MISTAKES[mistake], places, tmp_path)) == 2
    printed = capfd.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    check_printed(printed.err)


def test_json_keeps_every_script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "꽃"
    model = small_model()
    labels = ("고양이", "犬", "gâteau", "d", "e")
    model.passport = replace(model.passport, labels=labels)
    (photo,) = write_photos(folder, 1)
    saved = save(model, tmp_path / "model")
    assert '"고양이"' in (saved / "config.json").read_text(encoding="utf-8")
    assert load(saved).passport.labels == labels
    for words in ("predict {m} {p} --json", "info {m} --json", "embed {m} {p} --out {o} --json"):
        filled = words.format(m=saved, p=photo, o=folder / "out").split()
        assert main(filled) == 0
        printed = capsys.readouterr().out
        assert "꽃" in printed or "고양이" in printed
        assert "\\u" not in printed
    shutil.rmtree(folder)
    facts: Any = json.loads(printed)
    assert facts["out"].endswith("꽃/out")
