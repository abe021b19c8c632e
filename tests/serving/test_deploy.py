"""The files in docs/deploy: each is read by what would read it, or by rules that say why."""

import ast
import importlib.util
import json
import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import yaml

import vitrail
from tests.inference.photos import small_model
from vitrail.cli.serve import Serve
from vitrail.inference.graph import INPUT
from vitrail.inference.onnx_file import OnnxFile
from vitrail.serving.metrics import Metrics

DEPLOY = Path(__file__).parents[2] / "docs" / "deploy"
READY, LIVE = "/v2/health/ready", "/v2/health/live"


# Dockerfile ------------------------------------------------------------------------------------

INSTRUCTIONS = {
    "FROM", "RUN", "CMD", "LABEL", "EXPOSE", "ENV", "ADD", "COPY", "ENTRYPOINT", "VOLUME", "USER",
    "WORKDIR", "ARG", "ONBUILD", "STOPSIGNAL", "HEALTHCHECK", "SHELL",
}  # fmt: skip


def parse_dockerfile(text: str) -> list[tuple[str, str]]:
    """Instructions and their arguments, by the rules of the reference: comments are whole lines,
    and a backslash at the end joins the next line."""
    lines = [
        line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")
    ]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    found = [line.partition(" ") for line in joined.splitlines()]
    return [(name.upper(), rest.strip()) for name, _, rest in found]


@pytest.fixture(scope="module")
def dockerfile() -> list[tuple[str, str]]:
    return parse_dockerfile((DEPLOY / "Dockerfile").read_text(encoding="utf-8"))


def last_stage(found: list[tuple[str, str]]) -> list[tuple[str, str]]:
    start = max(place for place, (name, _) in enumerate(found) if name == "FROM")
    return found[start:]


def test_every_line_of_the_dockerfile_is_an_instruction(dockerfile: list[tuple[str, str]]) -> None:
    assert dockerfile[0][0] in ("FROM", "ARG")
    assert not [line for line in dockerfile if line[0] not in INSTRUCTIONS or not line[1]]


def test_base_images_have_a_version(dockerfile: list[tuple[str, str]]) -> None:
    """An image without a tag, or `latest`, is another one tomorrow (hadolint DL3006, DL3007)."""
    bases = [rest.split()[0] for name, rest in dockerfile if name == "FROM"]
    assert not [one for one in bases if ":" not in one or one.endswith(":latest")]


def test_the_container_has_no_root_and_no_secret(dockerfile: list[tuple[str, str]]) -> None:
    """A user by number, which Kubernetes can check (runAsNonRoot), and after the last RUN."""
    stage = last_stage(dockerfile)
    users = [place for place, (name, _) in enumerate(stage) if name == "USER"]
    runs = [place for place, (name, _) in enumerate(stage) if name == "RUN"]
    assert users[-1] > runs[-1]
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", stage[users[-1]][1])
    assert not re.search(r"(?i)(password|secret|token|key)=", " ".join(r for _, r in dockerfile))


def test_commands_of_the_container_get_signals(dockerfile: list[tuple[str, str]]) -> None:
    """In the form of a list: a shell would not pass SIGTERM on (hadolint DL3025)."""
    stage = dict(last_stage(dockerfile))
    for name in ("ENTRYPOINT", "CMD"):
        assert isinstance(json.loads(stage[name]), list)
    check = json.loads(stage["HEALTHCHECK"].partition("CMD ")[2])
    compile(check[2], "health check", "exec")
    assert READY in check[2]
    assert f":{stage['EXPOSE']}/" in check[2]


def test_the_container_starts_the_service_with_options_that_it_has(
    dockerfile: list[tuple[str, str]],
) -> None:
    command = json.loads(dict(last_stage(dockerfile))["ENTRYPOINT"])
    assert command[:2] == ["vitrail", "serve"]
    check_options(command[2:])


def test_copied_files_are_in_the_repository(dockerfile: list[tuple[str, str]]) -> None:
    top = DEPLOY.parents[1]
    copied = [rest.split()[:-1] for name, rest in dockerfile if name == "COPY"]
    own = [one for names in copied for one in names if not names[0].startswith("--from")]
    assert own
    assert not [one for one in own if not (top / one).exists()]
    extras = re.findall(r"\.\[([\w,]+)\]", " ".join(rest for _, rest in dockerfile))
    project = (top / "pyproject.toml").read_text(encoding="utf-8")
    assert extras
    assert all(f"\n{extra} = [" in project for extra in extras[0].split(","))


def check_options(words: list[str]) -> None:
    """Options of a command line, against those of `vitrail serve`."""
    known = {f"--{name.replace('_', '-')}" for name in Serve.__dataclass_fields__}
    given = [word.partition("=")[0] for word in words if word.startswith("--")]
    assert not [one for one in given if one not in known]


# YAML ------------------------------------------------------------------------------------------


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DEPLOY / name).read_text(encoding="utf-8")))


def test_compose_runs_the_image_read_only_and_on_loopback() -> None:
    [compose] = documents("compose.yaml")
    services = compose["services"]
    assert set(services) == {"vitrail", "prometheus", "grafana"}
    for one in services.values():
        assert all(port.startswith("127.0.0.1:") for port in one["ports"])
        named = {v.partition(":")[0] for v in one["volumes"] if not v.startswith((".", "$"))}
        assert named <= set(compose["volumes"])
        mounted = [v.partition(":")[0] for v in one["volumes"] if v.startswith("./")]
        assert not [path for path in mounted if not (DEPLOY / path).is_file()]
    own = services["vitrail"]
    assert own["read_only"]
    assert own["cap_drop"] == ["ALL"]
    assert (DEPLOY / own["build"]["context"] / own["build"]["dockerfile"]).is_file()
    check_options(own["command"])
    for other in ("prometheus", "grafana"):
        assert re.search(r":v?\d+\.\d+\.\d+$", services[other]["image"])


def test_the_deployment_has_probes_resources_and_no_privileges() -> None:
    kinds = {one["kind"]: one for one in documents("kubernetes.yaml")}
    deployment, service = kinds["Deployment"], kinds["Service"]
    pod = deployment["spec"]["template"]
    [container] = pod["spec"]["containers"]
    assert container["startupProbe"]["httpGet"]["path"] == READY
    assert container["readinessProbe"]["httpGet"]["path"] == READY
    assert container["livenessProbe"]["httpGet"]["path"] == LIVE
    ports = {one["name"]: one["containerPort"] for one in container["ports"]}
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"]["port"] in ports
    assert set(container["resources"]["requests"]) == {"cpu", "memory"}
    assert "memory" in container["resources"]["limits"]
    assert pod["spec"]["securityContext"]["runAsNonRoot"]
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert not container["securityContext"]["allowPrivilegeEscalation"]
    mounts = {one["name"] for one in container["volumeMounts"]}
    assert mounts == {one["name"] for one in pod["spec"]["volumes"]}
    check_options(container["args"])
    labels = pod["metadata"]["labels"]
    assert deployment["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert service["spec"]["selector"].items() <= labels.items()
    assert service["spec"]["ports"][0]["targetPort"] in ports
    for other in ("PodDisruptionBudget", "HorizontalPodAutoscaler"):
        assert kinds[other]["metadata"]["name"] == "vitrail"
    grace = pod["spec"]["terminationGracePeriodSeconds"]
    assert grace > Serve.__dataclass_fields__["timeout"].default


def test_kserve_services_speak_protocol_v2() -> None:
    on_triton, own = documents("kserve.yaml")
    assert on_triton["spec"]["predictor"]["model"]["protocolVersion"] == "v2"
    [container] = own["spec"]["predictor"]["containers"]
    assert container["readinessProbe"]["httpGet"]["path"] == READY
    assert container["livenessProbe"]["httpGet"]["path"] == LIVE
    check_options(container["args"])


# Prometheus and Grafana --------------------------------------------------------------------------


def exposed_names() -> set[str]:
    """Names of series that /metrics has, from the registry of the service itself."""
    families = Metrics().registry.collect()
    suffixes = {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"], "gauge": [""]}
    return {f"{one.name}{suffix}" for one in families for suffix in suffixes[one.type]}


def test_the_dashboard_asks_for_metrics_that_the_service_has() -> None:
    dashboard = json.loads((DEPLOY / "grafana" / "dashboard.json").read_text(encoding="utf-8"))
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    asked = {name for query in queries for name in re.findall(r"\bvitrail_\w+", query)}
    assert asked <= exposed_names()
    kinds = {re.sub(r"_(bucket|sum|count)$", "", name) for name in exposed_names()}
    assert {re.sub(r"_(bucket|sum|count)$", "", name) for name in asked} == kinds, (
        "every metric has a place on the dashboard"
    )
    assert all(query.count("(") == query.count(")") for query in queries)
    places = [tuple(panel["gridPos"][key] for key in "xy") for panel in dashboard["panels"]]
    assert len(set(places)) == len(places)


def test_the_dashboard_finds_its_data_source_and_prometheus_its_service() -> None:
    dashboard = json.loads((DEPLOY / "grafana" / "dashboard.json").read_text(encoding="utf-8"))
    [source] = documents("grafana/datasource.yaml")[0]["datasources"]
    used = {panel["datasource"]["uid"] for panel in dashboard["panels"]}
    assert used == {source["uid"]}
    [compose], [prometheus] = documents("compose.yaml"), documents("prometheus.yml")
    assert source["url"] == "http://prometheus:9090"
    [job] = prometheus["scrape_configs"]
    assert job["static_configs"][0]["targets"] == ["vitrail:8000"]
    [provider] = documents("grafana/dashboards.yaml")[0]["providers"]
    mounted = " ".join(compose["services"]["grafana"]["volumes"])
    assert f"{provider['options']['path']}/vitrail.json" in mounted


def test_the_readme_names_files_options_and_metrics_that_are_there() -> None:
    text = (DEPLOY / "README.md").read_text(encoding="utf-8")
    linked = re.findall(r"\]\(([\w./]+)\)", text)
    assert not [name for name in linked if not (DEPLOY / name).exists()]
    series = set(re.findall(r"\bvitrail_\w+", text))
    assert {name for name in series if f"{name}_count" not in exposed_names()} <= exposed_names()


# Triton ------------------------------------------------------------------------------------------


def load_script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(Path(name).stem, DEPLOY / name)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def tensors_of(config: str, block: str) -> dict[str, tuple[str, list[int]]]:
    """Names, types and dims of the `input` or `output` block of a config.pbtxt."""
    body = re.search(rf"^{block} \[\n(.*?)^\]", config, re.S | re.M)
    assert body is not None
    rows = re.findall(r'name: "(\w+)"\s+data_type: (\w+)\s+dims: \[ ([-\d, ]+) \]', body[1])
    return {name: (kind, [int(side) for side in dims.split(",")]) for name, kind, dims in rows}


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("exported") / "model.onnx"
    vitrail.export(small_model(), file, features=True)
    return file


@pytest.mark.slow  # exporting takes half a minute
def test_the_repository_for_triton_has_the_names_of_the_exported_graph(
    exported: Path, tmp_path: Path
) -> None:
    script = load_script("triton/make_repository.py")
    folder = script.make_repository(exported, tmp_path, name="pets", batch_size=8)
    config = (folder / "config.pbtxt").read_text(encoding="utf-8")
    session = OnnxFile(folder / "1" / "model.onnx").session
    for block, nodes in (("input", session.get_inputs()), ("output", session.get_outputs())):
        wanted = {one.name: ("TYPE_FP32", list(one.shape[1:])) for one in nodes}
        assert tensors_of(config, block) == wanted
    assert 'name: "pets"' in config
    assert "max_batch_size: 8" in config
    assert config.count("{") == config.count("}")
    with pytest.raises(vitrail.UserError, match="is there already"):
        script.make_repository(exported, tmp_path, name="pets")


def test_the_config_that_is_shown_has_the_names_of_exported_graphs() -> None:
    shown = (DEPLOY / "triton" / "config.pbtxt").read_text(encoding="utf-8")
    assert list(tensors_of(shown, "input")) == [INPUT]
    assert list(tensors_of(shown, "output")) == ["logits", "pooled"]


@pytest.mark.slow
def test_the_config_that_is_shown_is_of_the_same_kind(exported: Path) -> None:
    shown = (DEPLOY / "triton" / "config.pbtxt").read_text(encoding="utf-8")
    script = load_script("triton/make_repository.py")
    made = script.make_config(exported, name="pets", batch_size=32)
    dims = re.compile(r"dims: \[ [-\d, ]+ \]")
    assert dims.sub("", shown) == dims.sub("", made)


# Ray Serve ---------------------------------------------------------------------------------------


def decorator_options(tree: ast.Module) -> dict[str, set[str]]:
    """Keywords that are given to `serve.NAME(…)` decorators."""
    found: dict[str, set[str]] = {}
    for node in ast.walk(tree):
        decorators = getattr(node, "decorator_list", [])
        for call in (one for one in decorators if isinstance(one, ast.Call)):
            assert isinstance(call.func, ast.Attribute)
            found[call.func.attr] = {str(keyword.arg) for keyword in call.keywords}
    return found


def test_the_ray_example_uses_options_that_ray_serve_has() -> None:
    """Read from the source of the installed Ray, whose Serve needs more packages to be imported."""
    ray = importlib.util.find_spec("ray")
    if ray is None or ray.origin is None:
        pytest.skip("ray is not installed")
    folder = Path(ray.origin).parent / "serve"
    known: dict[str, set[str]] = {}
    for name in ("api.py", "batching.py"):
        for node in ast.walk(ast.parse((folder / name).read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef):
                arguments = {one.arg for one in (*node.args.args, *node.args.kwonlyargs)}
                known.setdefault(node.name, set()).update(arguments)
    used = decorator_options(ast.parse((DEPLOY / "ray_serve.py").read_text(encoding="utf-8")))
    assert set(used) == {"deployment", "batch"}
    assert not {name: given - known[name] for name, given in used.items() if given - known[name]}


async def run_requests(classifier: Any, images: list[bytes]) -> list[dict[str, Any]]:
    return [
        await classifier(SimpleNamespace(stream=lambda data=one: chunks(data))) for one in images
    ]


async def chunks(data: bytes) -> Any:
    yield data[:100]
    yield data[100:]


def test_the_ray_example_predicts_as_the_model_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its class with the real model, and in place of Ray's decorators ones that hand each request
    on alone: a cluster is not started here."""
    import asyncio

    from tests.inference.photos import write_photos

    serve: Any = ModuleType("ray.serve")
    serve.deployment = lambda **options: lambda kind: with_bind(kind)
    serve.batch = lambda **options: alone
    ray: Any = ModuleType("ray")
    ray.serve = serve
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setitem(sys.modules, "ray.serve", serve)
    module = load_script("ray_serve.py")
    model = str(vitrail.save(small_model(), tmp_path / "model"))
    names = write_photos(tmp_path / "photos", 3, broken=(1,))
    classifier = module.Classifier(model)
    classifier.check_health()
    found = asyncio.run(run_requests(classifier, [Path(one).read_bytes() for one in names]))
    wanted = vitrail.predict(model, names)
    assert [one["label"] for one in found] == [one.label for one in wanted]
    assert found[1]["problem"]
    assert found[0]["score"] == pytest.approx(wanted[0].score, abs=1e-5)
    too_large = asyncio.run(run_requests(classifier, [bytes(module.MAX_BYTES + 1)]))
    assert "may have" in too_large[0]["problem"]


def with_bind(kind: Any) -> Any:
    kind.bind = classmethod(lambda cls, *arguments: (cls, arguments))
    return kind


def alone(method: Any) -> Any:
    async def call(self: Any, item: bytes) -> Any:
        [found] = await method(self, [item])
        return found

    return call
