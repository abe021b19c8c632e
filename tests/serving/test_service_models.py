"""Keys, and models that are loaded, swapped and unloaded while requests go on."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.serving.running import Running, png, running
from vitrail.serving.launcher import Launcher

USER, ADMIN = "user-key-0123456789", "admin-key-0123456789"


@pytest.fixture(scope="module")
def keyed(
    launcher: Launcher, checkpoints: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    keys = tmp_path_factory.mktemp("keys") / "keys.txt"
    keys.write_text(f"# who may ask\n{USER}\n{ADMIN} admin\n")
    pets, other = str(checkpoints / "pets"), f"other={checkpoints / 'other'}"
    missing = f"missing={checkpoints / 'missing'}"
    options: dict[str, Any] = {"api_key_file": str(keys), "window": 0}
    with running(launcher, pets, standby=[other, missing], **options) as found:
        yield found


def as_user(service: Running) -> Running:
    return replace(service, headers={"authorization": f"Bearer {USER}"})


def as_admin(service: Running) -> Running:
    return replace(service, headers={"x-api-key": ADMIN})


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "path", ["/v1/models", "/v2", "/v2/models/pets", "/metrics", "/openapi.json"]
)
def test_a_key_is_needed(keyed: Running, path: str) -> None:
    refused = keyed.get(path)
    assert (refused.status, refused.headers["www-authenticate"]) == (401, "Bearer")
    assert replace(keyed, headers={"x-api-key": USER + "x"}).get(path).status == 401
    assert replace(keyed, headers={"authorization": f"Basic {USER}"}).get(path).status == 401
    assert as_user(keyed).get(path).status == 200


@pytest.mark.parametrize("path", ["/", "/healthz", "/v2/health/live", "/v2/health/ready"])
def test_the_page_and_probes_need_no_key(keyed: Running, path: str) -> None:
    assert keyed.get(path).status == 200


def test_a_body_without_a_key_is_not_read(keyed: Running) -> None:
    assert keyed.form("/v1/predict", [png(1)]).status == 401


def test_models_are_changed_by_an_admin_alone(keyed: Running, service: Running) -> None:
    body = {"source": "other"}
    assert as_user(keyed).post_json("/v1/models/pets", body).status == 403
    assert as_user(keyed).ask("DELETE", "/v1/models/pets").status == 403
    assert service.post_json("/v1/models/pets", body).status == 403  # without keys nobody is one


@pytest.mark.parametrize(
    ("name", "body", "status"),
    [
        ("pets", {"source": "/etc/passwd"}, 404),
        ("pets", {"source": "../other"}, 404),
        ("pets", {"source": 3}, 422),
        ("pets", {"path": "x"}, 422),
        ("pets", [], 400),
        ("a%20b", {"source": "other"}, 422),
        ("pets", {"source": "missing"}, 422),
    ],
)
def test_only_sources_of_the_start_are_loaded(
    keyed: Running, name: str, body: object, status: int
) -> None:
    reply = as_admin(keyed).post_json(f"/v1/models/{name}", body)
    assert (reply.status, reply.json()["code"]) == (status, status)
    assert as_user(keyed).form("/v1/predict", [png(1)]).status == 200


@pytest.mark.slow
def test_models_are_swapped_and_unloaded_without_losing_a_request(keyed: Running) -> None:
    admin, user = as_admin(keyed), as_user(keyed)
    before = user.form("/v1/predict", [png(5)]).json()["predictions"]
    statuses: list[int] = []
    done = threading.Event()

    def ask() -> None:
        seed = 0
        while not done.is_set():
            statuses.append(user.form("/v1/predict?model=pets", [png(seed)]).status)
            seed += 1

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    assert admin.post_json("/v1/models/pets", {"source": "other"}).status == 200
    assert admin.post_json("/v1/models/second", {"source": "pets"}).json()["state"] == "ready"
    after = user.form("/v1/predict?model=pets", [png(5)]).json()["predictions"]
    second = user.form("/v1/predict?model=second", [png(5)]).json()["predictions"]
    assert admin.ask("DELETE", "/v1/models/second").json() == {"unloaded": "second"}
    done.set()
    for thread in threads:
        thread.join()
    assert len(statuses) > 3
    assert set(statuses) == {200}
    assert second == before != after
    assert user.form("/v1/predict?model=second", [png(5)]).status == 404
    assert [one["name"] for one in user.get("/v1/models").json()["models"]] == ["pets"]
    assert user.get("/v1/models").json()["models"][0]["source"] == "other"
    assert admin.ask("DELETE", "/v1/models/second").status == 404
    rows = user.get("/metrics").body.decode().splitlines()
    ready = [row for row in rows if row.startswith("vitrail_workers{")]
    assert ready == ['vitrail_workers{model="pets"} 1.0']  # of the one in its place


def test_without_a_model_requests_are_refused_in_words(keyed: Running) -> None:
    admin = as_admin(keyed)
    assert admin.ask("DELETE", "/v1/models/pets").status == 200
    assert "no model is served" in admin.form("/v1/predict", [png(1)]).json()["error"]
    assert keyed.get("/v2/health/ready").status == 503
    assert admin.post_json("/v1/models/pets", {"source": "pets"}).status == 200
    assert admin.form("/v1/predict", [png(1)]).status == 200
