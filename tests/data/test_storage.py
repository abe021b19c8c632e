"""Training from storage that fails: a web server that refuses 10 % of all requests."""

import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vitrail
from tests.data.test_shards import write_tars
from tests.training.test_resume import fingerprint
from vitrail.data.sources import places

pytest.importorskip("aiohttp")


@dataclass
class Storage:
    """Files of a folder over HTTP, with ranges; every request fails with this probability."""

    root: Path
    failing: float = 0.0
    asked: int = 0
    refused: int = 0
    draw: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def answer(self, request: BaseHTTPRequestHandler, *, body: bool) -> None:
        self.asked += 1
        if self.draw.random() < self.failing:
            self.refused += 1
            request.send_error(503)
            return
        path = self.root / request.path.lstrip("/")
        if not path.is_file():
            request.send_error(404)
            return
        data, total = path.read_bytes(), path.stat().st_size
        stretch = re.fullmatch(r"bytes=(\d+)-(\d+)", request.headers.get("Range", ""))
        request.send_response(206 if stretch else 200)
        if stretch:
            first, last = int(stretch[1]), min(int(stretch[2]), total - 1)
            data = data[first : last + 1]
            request.send_header("Content-Range", f"bytes {first}-{last}/{total}")
        request.send_header("Accept-Ranges", "bytes")
        request.send_header("Content-Length", str(len(data)))
        request.end_headers()
        if body:
            request.wfile.write(data)


@pytest.fixture
def storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Storage, str]]:
    monkeypatch.setattr(places, "LONG_PAUSES", (0.0,) * 8)
    monkeypatch.setattr(places, "PAUSES", (0.0,) * 6)
    write_tars(tmp_path / "tars", shards=4, each=8)
    files = Storage(tmp_path / "tars")

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            files.answer(self, body=True)

        def do_HEAD(self) -> None:
            files.answer(self, body=False)

        def log_message(self, format: str, *args: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield files, f"http://127.0.0.1:{server.server_port}/train-{{000..003}}.tar"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.slow
def test_a_tenth_of_all_requests_may_fail(
    storage: tuple[Storage, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, place = storage
    options: dict[str, Any] = {"fields.depth": 1, "fields.dim": 16, "fields.mlp_dim": 16}
    for failing in (0.0, 0.1):
        monkeypatch.setenv("VITRAIL_SHARD_CACHE", str(tmp_path / f"cache-{failing}"))
        monkeypatch.setenv("VITRAIL_SHARD_CACHE_GB", "0" if failing else "1")
        files.failing, files.refused = failing, 0
        out = tmp_path / f"run-{failing}"
        run = vitrail.train(
            place,
            out=out,
            steps=8,
            batch_size=8,
            threads=1,
            workers=1 if failing else 0,
            set={**options, "cache": False},
        )
        assert run.broken == ()
    assert files.refused > 3
    assert fingerprint(tmp_path / "run-0.0") == fingerprint(tmp_path / "run-0.1")
