"""Training from an S3 server that fails a tenth of all requests: the same bits."""

import logging
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fsspec  # type: ignore[import-untyped]
import numpy as np
import pytest
from PIL import Image

import vitrail
from tests.data.test_shards import write_tars
from tests.training.test_resume import fingerprint

pytest.importorskip("s3fs")
pytest.importorskip("flask_cors")  # which moto's server needs
server_of_moto = pytest.importorskip("moto.server")

SLOW_DOWN = b"<Error><Code>SlowDown</Code><Message>Too many requests</Message></Error>"


@dataclass
class Failing:
    """An application whose requests fail with this probability, as S3 fails when it is busy."""

    application: Any
    share: float = 0.0
    asked: int = 0
    refused: int = 0
    draw: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def __call__(self, environ: Any, start_response: Any) -> Iterable[bytes]:
        self.asked += 1
        if self.draw.random() < self.share:
            self.refused += 1
            size = str(len(SLOW_DOWN))
            start_response("503 Slow Down", [("Content-Length", size)])
            return [SLOW_DOWN]
        found: Iterable[bytes] = self.application(environ, start_response)
        return found


@pytest.fixture
def storage(monkeypatch: pytest.MonkeyPatch) -> Iterator[Failing]:
    """moto as a server on this machine, where s3fs looks for Amazon's."""
    from werkzeug.serving import make_server

    monkeypatch.setattr(logging.getLogger("werkzeug"), "level", logging.ERROR)
    application = server_of_moto.DomainDispatcherApplication(server_of_moto.create_backend_app)
    failing = Failing(application)
    server = make_server("127.0.0.1", 0, failing, threaded=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    yield failing
    server.shutdown()
    server.server_close()
    thread.join()


def write_folders(folder: Path) -> None:
    draw = np.random.default_rng(0)
    for number in range(24):
        path = folder / f"class-{number % 2}" / f"{number:02}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(draw.integers(0, 256, (12, 12, 3), dtype=np.uint8)).save(path)


@pytest.mark.faults
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("kind", ["tars", "folders"])
def test_a_tenth_of_all_requests_fails(
    kind: str,
    storage: Failing,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (write_tars if kind == "tars" else write_folders)(tmp_path / kind)
    bucket = fsspec.filesystem("s3", skip_instance_cache=True)
    bucket.mkdir(f"photos-{kind}")
    for path in sorted((tmp_path / kind).rglob("*.*")):
        with bucket.open(f"photos-{kind}/{kind}/{path.relative_to(tmp_path / kind)}", "wb") as file:
            file.write(path.read_bytes())
    options: dict[str, Any] = {"fields.depth": 1, "fields.dim": 16, "fields.mlp_dim": 16}
    counts = []
    for number, share in enumerate((0.0, 0.1, 0.1)):  # with and without a cache on disk, workers
        fsspec.filesystem("s3").clear_instance_cache()
        monkeypatch.setenv("VITRAIL_SHARD_CACHE", str(tmp_path / f"cache-{number}"))
        monkeypatch.setenv("VITRAIL_SHARD_CACHE_GB", "0" if number == 2 else "1")
        storage.share, storage.asked, storage.refused = share, 0, 0
        out = tmp_path / f"run-{number}"
        run = vitrail.train(
            f"s3://photos-{kind}/{kind}",
            out=out,
            steps=12,
            batch_size=8,
            threads=1,
            workers=number % 2,
            set={**options, "cache": False, "monitor.outage_minutes": 0},
        )
        assert run.broken == ()
        counts.append(f"{storage.refused} of {storage.asked}")
    same = [fingerprint(tmp_path / f"run-{n}") == fingerprint(tmp_path / "run-0") for n in (1, 2)]
    with capsys.disabled():
        print(f"\nS3, {kind}: {', '.join(counts)} requests refused, same bits: {same}")
    assert all(same)
    assert storage.refused > 3
