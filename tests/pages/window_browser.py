"""The web page in a real Chromium: opening it, reading what it shows, accessibility rules."""

import re
import shutil
import subprocess
import tarfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from vitrail.inference.engines.cache import cache_folder

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--no-sandbox",
    "--use-fake-device-for-media-stream",
    "--use-fake-ui-for-media-stream",
    "--disable-background-networking",
)
AXE = "4.14.0"
SECONDS = 120  # at most: machines that run tests are busy
OVERFLOW = (
    "Math.max(0, document.documentElement.scrollWidth - document.documentElement.clientWidth)"
)
# the opacity at the middle of each cell of the overlay: it rises with the share
CELLS = """([rows, columns]) => {
  const canvas = document.querySelector("#stage .over");
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  return Array.from({ length: rows * columns }, (_, cell) => {
    const y = Math.floor((Math.floor(cell / columns) + 0.5) * canvas.height / rows);
    const x = Math.floor((cell % columns + 0.5) * canvas.width / columns);
    return data[(y * canvas.width + x) * 4 + 3];
  });
}"""


@contextmanager
def open_browser(*flags: str) -> Iterator[Any]:
    """A headless Chromium, or the test is skipped with what is missing."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        pytest.skip("no browser is installed: apt install chromium, or Google Chrome")
    with api.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=path, args=[*FLAGS, *flags])
        yield opened
        opened.close()


class Visitor:
    """Opens pages of one address, and notes errors and requests to anybody else."""

    def __init__(self, browser: Any, address: str, seconds: float = SECONDS) -> None:
        self.browser, self.address, self.seconds = browser, address, seconds
        self.contexts: list[Any] = []
        self.problems: list[str] = []

    def open(self, link: str = "", *, inspected: bool = True, **options: Any) -> Any:
        """The page at a deep link, once its image is inspected."""
        settings = {
            "viewport": {"width": 1280, "height": 900},
            "locale": "en-US",
            "reduced_motion": "reduce",
        }
        context = self.browser.new_context(**settings | options)
        self.contexts.append(context)
        context.on("request", self.check_request)
        page = context.new_page()
        page.set_default_timeout(self.seconds * 1000)
        page.on("console", self.check_message)
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.goto(f"{self.address}#{link}")
        page.wait_for_selector("html[data-inspected]" if inspected else "html[data-ready]")
        settle(page)
        return page

    def check_request(self, request: Any) -> None:
        if not request.url.startswith((self.address, "blob:", "data:")):
            self.problems.append(request.url)

    def check_message(self, message: Any) -> None:
        if message.type == "error" and not re.search("status of (4|50[34])", message.text):
            self.problems.append(message.text)

    def close(self) -> None:
        for context in self.contexts:
            context.close()
        assert not self.problems


def settle(page: Any) -> None:
    """Wait until what was set is drawn."""
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => setTimeout(done, 20)))")


def wait_until(page: Any, condition: str, seconds: float = SECONDS) -> None:
    """As `wait_for_function`, which evaluates text inside the page: its policy forbids that."""
    end = time.monotonic() + seconds
    while not page.evaluate(condition):
        assert time.monotonic() < end, condition
        page.wait_for_timeout(30)


def cells_of(page: Any, grid: tuple[int, int]) -> list[int]:
    """How strong the overlay is in each cell, row by row."""
    found: list[int] = page.evaluate(CELLS, list(grid))
    return found


def cells_where(
    page: Any, grid: tuple[int, int], strongest: int, seconds: float = SECONDS
) -> list[int]:
    """The same once the strongest cell is this one, or after so many seconds: a busy machine draws
    later."""
    end = time.monotonic() + seconds
    while (found := cells_of(page, grid)).index(max(found)) != strongest:
        if time.monotonic() > end:
            break
        page.wait_for_timeout(30)
    return found


# Ends once the page has heard of its new hash: its own listener was there before this one.
FOLLOW = """(link) => new Promise((done) => {
    const before = location.hash;
    addEventListener("hashchange", () => setTimeout(done), { once: true });
    location.hash = link;
    if (location.hash === before) done();
})"""


def go(page: Any, link: str) -> None:
    """Follow a deep link in an open page."""
    page.evaluate(FOLLOW, link)
    settle(page)


def hover_cell(page: Any, cell: tuple[int, int], grid: tuple[int, int]) -> None:
    box = page.locator("#stage").bounding_box()
    y = box["y"] + box["height"] * (cell[0] + 0.5) / grid[0]
    x = box["x"] + box["width"] * (cell[1] + 0.5) / grid[1]
    page.mouse.move(x, y)
    settle(page)


def accessibility_problems(page: Any, *, within: str = "body") -> list[str]:
    """What axe-core finds: the rule, and the element."""
    page.evaluate(axe_script())
    found = page.evaluate("(root) => axe.run(root)", within)
    return [
        f"{rule['id']}: {node['target']} {node['failureSummary']}"
        for rule in found["violations"]
        for node in rule["nodes"]
    ]


def axe_script() -> str:
    """axe-core from its npm package, kept in the cache; skipped where npm cannot get it."""
    folder = Path(cache_folder()) / "axe-core"
    file = folder / f"axe-{AXE}.min.js"
    if not file.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        if shutil.which("npm") is None:
            pytest.skip("axe-core needs npm, which is not installed")
        command = ["npm", "pack", f"axe-core@{AXE}", "--pack-destination", str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        if done.returncode:
            pytest.skip(f"npm could not get axe-core {AXE}")
        with tarfile.open(folder / f"axe-core-{AXE}.tgz") as archive:
            content = archive.extractfile("package/axe.min.js")
            assert content is not None
            file.write_bytes(content.read())
    return file.read_text(encoding="utf-8")
