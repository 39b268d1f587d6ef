"""The manifests for Kubernetes and KubeRay: valid by Kubernetes' schemas, restricted, true of the server."""

import json
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from kustomize import MERGED, by_name, render
from onebert_server.http.auth import OPEN_PATHS
from onebert_server.run.engine_server import STOP_MARGIN
from onebert_server.run.opening import CLOSE_TIMEOUT
from onebert_server.settings import PREFIX, Settings

ROOT = Path(__file__).parents[2]
KUBERNETES = ROOT / "deploy/kubernetes"
PLAIN = [KUBERNETES / "overlays/replicas", KUBERNETES / "overlays/volume"]
OVERLAYS = [*PLAIN, ROOT / "plugins/onebert-ray/kubernetes"]
# Of the Prometheus operator and of KubeRay, which Kubernetes has no schemas of.
OPERATORS = {"monitoring.coreos.com/v1", "ray.io/v1"}
# The oldest that gets fixes from anybody, and the newest whose schemas are installed.
VERSIONS = ["1.31", kubernetes_validate.latest_version().rpartition(".")[0]]

overlays = pytest.mark.parametrize("overlay", OVERLAYS, ids=lambda overlay: overlay.name)
# Those whose pods are a Deployment's; what else the pods of Ray keep, tests/unit/test_rayservice.py says.
plain = pytest.mark.parametrize("overlay", PLAIN, ids=lambda overlay: overlay.name)


def deployment(folder):
    return by_name(render(folder))["Deployment", "onebert"]


def pod(folder):
    return deployment(folder)["spec"]["template"]["spec"]


def pods(folder):
    """Every pod of a server of a layout, which each have one container."""
    manifests = by_name(render(folder))
    if ("RayService", "onebert") not in manifests:
        return [pod(folder)]
    cluster = manifests["RayService", "onebert"]["spec"]["rayClusterConfig"]
    return [group["template"]["spec"] for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"])]


def jobs(folder):
    """The pods of the jobs of a layout by their names."""
    manifests = by_name(render(folder))
    jobs = {name: manifest for (kind, name), manifest in manifests.items() if kind == "CronJob"}
    return {name: job["spec"]["jobTemplate"]["spec"]["template"]["spec"] for name, job in jobs.items()}


def container(folder):
    [server] = pod(folder)["containers"]
    return server


def environment(folder):
    return {entry["name"]: entry for entry in container(folder)["env"]}


def example(folder):
    """The files of docs/reference/kubernetes.md, and a checkout beside them."""
    page = (ROOT / "docs/reference/kubernetes.md").read_text(encoding="utf-8")
    for name, text in re.findall(r"^```yaml\n# (\w+\.yaml)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
        (folder / name).write_text(text, encoding="utf-8")
    (folder / "onebert").symlink_to(ROOT)
    return folder


@overlays
@pytest.mark.parametrize("version", VERSIONS)
def test_every_manifest_is_valid_and_has_no_unknown_field(overlay, version):
    for manifest in render(overlay):
        if manifest["apiVersion"] not in OPERATORS:
            assert kubernetes_validate.validate(manifest, version, strict=True) == version


def test_the_example_of_the_page_renders_and_is_valid(tmp_path):
    manifests = render(example(tmp_path))
    for manifest in manifests:
        if manifest["apiVersion"] not in OPERATORS:
            kubernetes_validate.validate(manifest, VERSIONS[-1], strict=True)
    assert {manifest["metadata"]["namespace"] for manifest in manifests} == {"onebert"}
    rendered = by_name(manifests)
    assert rendered["Deployment", "onebert"]["spec"]["template"]["spec"]["containers"][0]["image"].startswith(
        "registry."
    )
    assert {kind for kind, _ in rendered} >= {"ServiceMonitor", "PrometheusRule", "ConfigMap"}


def sorted_lists(value):
    """With the items of lists in an order that does not depend on who merged them."""
    if isinstance(value, dict):
        return {
            key: sorted(map(sorted_lists, part), key=lambda item: item[MERGED[key]])
            if key in MERGED
            else sorted_lists(part)
            for key, part in value.items()
        }
    return [sorted_lists(item) for item in value] if isinstance(value, list) else value


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
@pytest.mark.parametrize("folder", [*OVERLAYS, None], ids=["replicas", "volume", "ray", "example"])
def test_kustomize_itself_renders_the_same(folder, tmp_path):
    folder = folder or example(tmp_path)
    command = ["kubectl", "kustomize", "--load-restrictor", "LoadRestrictionsNone", folder]
    built = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    theirs = by_name(list(yaml.safe_load_all(built)))
    assert sorted_lists(by_name(render(folder))) == sorted_lists(theirs)


@overlays
def test_a_pod_keeps_the_restricted_standard_and_writes_to_its_volumes_alone(overlay):
    """Kubernetes' Pod Security Standards, "restricted"; a read-only root beyond it."""
    for spec in [*pods(overlay), *jobs(overlay).values()]:
        [server] = spec["containers"]
        assert (
            spec["securityContext"].items()
            >= {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}.items()
        )
        assert server["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        volumes = {volume["name"]: volume.keys() - {"name"} for volume in spec["volumes"]}
        assert all(kinds in ({"emptyDir"}, {"persistentVolumeClaim"}) for kinds in volumes.values())
        assert volumes.keys() - {"shm", "backup"} == {"data", "home", "tmp"}
        assert {mount["name"] for mount in server["volumeMounts"]} == volumes.keys()
        # A token of the API server is in no pod.
        assert spec["automountServiceAccountToken"] is False
        assert not {"hostNetwork", "hostPID", "hostIPC", "hostUsers"} & spec.keys()


@overlays
def test_the_pod_runs_as_the_images_user_in_the_images_folders(overlay):
    image = (ROOT / "deploy/Dockerfile").read_text(encoding="utf-8")
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    for spec in [*pods(overlay), *jobs(overlay).values()]:
        [server] = spec["containers"]
        security = spec["securityContext"]
        [user] = {security["runAsUser"], security["runAsGroup"], security["fsGroup"]}
        assert f"useradd --create-home --uid {user} onebert" in image
        assert f"\nUSER {user}:{user}\n" in image
        mounts = {mount["name"]: mount["mountPath"] for mount in server["volumeMounts"]}
        assert f"ONEBERT_DATA_DIR={mounts['data']} " in image
        assert mounts["home"] == "/home/onebert"
        assert server["image"] == f"onebert:{version}"


@overlays
def test_every_variable_is_a_setting_and_every_secret_a_reference(overlay):
    settings = {f"{PREFIX}{name.upper()}" for name in Settings.model_fields}
    for spec in pods(overlay):
        [server] = spec["containers"]
        entries = {entry["name"]: entry for entry in server["env"] if entry["name"].startswith(PREFIX)}
        assert entries.keys() <= settings
        for name, entry in entries.items():
            if "value" in entry:
                field = name.removeprefix(PREFIX).lower()
                Settings.model_validate({"api_keys": {b"": "key"}, field: entry["value"]})
        assert entries["ONEBERT_API_KEYS"]["valueFrom"]["secretKeyRef"].keys() == {"name", "key"}
        # Kubernetes would set ONEBERT_PORT by itself.
        assert spec["enableServiceLinks"] is False
    assert "Secret" not in {kind for kind, _ in by_name(render(overlay))}


@plain
def test_each_probe_asks_its_own_question_without_a_key(overlay):
    server = container(overlay)
    asked = {probe: server[f"{probe}Probe"]["httpGet"] for probe in ("startup", "liveness", "readiness")}
    assert {probe: get["path"] for probe, get in asked.items()} == {
        "startup": "/startupz",
        "liveness": "/healthz",
        "readiness": "/readyz",
    }
    assert {get["path"] for get in asked.values()} <= OPEN_PATHS
    [port] = server["ports"]
    assert {get["port"] for get in asked.values()} == {port["name"]}
    assert port["containerPort"] == Settings.model_fields["port"].default


@plain
def test_there_is_time_for_a_pod_to_end(overlay):
    entries = environment(overlay)
    values = {name: float(entry["value"]) for name, entry in entries.items() if entry.get("value", "").isdigit()}
    drain = values["ONEBERT_DRAIN_DELAY"]
    shutdown = values.get("ONEBERT_SHUTDOWN_TIMEOUT", Settings.model_fields["shutdown_timeout"].default)
    # With front ends, one of them may hang for as long again.
    assert pod(overlay)["terminationGracePeriodSeconds"] > drain + shutdown + CLOSE_TIMEOUT + STOP_MARGIN
    # After an engine that hangs nothing waits for its requests.
    liveness = container(overlay)["livenessProbe"]
    assert liveness["terminationGracePeriodSeconds"] >= drain + CLOSE_TIMEOUT
    # Readiness is lost, and a balancer has heard of it, while requests are still answered.
    readiness = container(overlay)["readinessProbe"]
    assert readiness["periodSeconds"] * readiness["failureThreshold"] < drain


@plain
def test_what_selects_finds_the_pods(overlay):
    manifests = by_name(render(overlay))
    labels = manifests["Deployment", "onebert"]["spec"]["template"]["metadata"]["labels"]
    service = manifests["Service", "onebert"]["spec"]
    selectors = [service["selector"], manifests["NetworkPolicy", "onebert"]["spec"]["podSelector"]["matchLabels"]]
    selectors.append(manifests["Deployment", "onebert"]["spec"]["selector"]["matchLabels"])
    if ("PodDisruptionBudget", "onebert") in manifests:
        selectors.append(manifests["PodDisruptionBudget", "onebert"]["spec"]["selector"]["matchLabels"])
    assert all(selector.items() <= labels.items() for selector in selectors)
    assert [port["targetPort"] for port in service["ports"]] == ["http"]
    assert manifests["NetworkPolicy", "onebert"]["spec"]["policyTypes"] == ["Ingress", "Egress"]


def test_the_monitor_finds_the_service(tmp_path):
    manifests = by_name(render(example(tmp_path)))
    monitor = manifests["ServiceMonitor", "onebert"]["spec"]
    service = manifests["Service", "onebert"]
    assert monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    [endpoint] = monitor["endpoints"]
    assert endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}
    alerts = yaml.safe_load((KUBERNETES / "monitoring/alerts.yml").read_text(encoding="utf-8"))
    assert manifests["PrometheusRule", "onebert"]["spec"] == alerts
    [board] = manifests["ConfigMap", "onebert-dashboard"]["data"].values()
    assert json.loads(board)["uid"] == "onebert"


@overlays
def test_jobs_back_up_and_clean_the_servers_store(overlay):
    """What the commands do to a store with kept answers: tests/unit/store/test_store_copy.py and test_gc.py."""
    of_jobs = jobs(overlay)
    servers = by_name(render(overlay))["Service", "onebert"]["spec"]["selector"]
    policy = by_name(render(overlay))["NetworkPolicy", "onebert-upkeep"]["spec"]
    for kind in ("backup", "gc"):
        template = by_name(render(overlay))["CronJob", f"onebert-{kind}"]["spec"]["jobTemplate"]["spec"]["template"]
        # No request is sent to a job.
        assert not servers.items() <= template["metadata"]["labels"].items()
        assert policy["podSelector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
        spec = of_jobs[f"onebert-{kind}"]
        claims = {
            volume["name"]: volume["persistentVolumeClaim"]["claimName"]
            for volume in spec["volumes"]
            if "persistentVolumeClaim" in volume
        }
        on_volume = overlay.name == "volume"
        assert claims.get("data") == ("onebert" if on_volume else None)
        assert (policy["egress"] == []) == on_volume
        [server] = spec["containers"]
        references = {entry["name"]: entry["valueFrom"]["secretKeyRef"] for entry in server["env"]}
        assert references["ONEBERT_REGISTRY"] == {"name": "onebert", "key": "registry", "optional": True}
        assert references["ONEBERT_BLOBS"] == {"name": "onebert", "key": "blobs", "optional": True}
        onebert, *arguments = server["command"]
        mounts = {mount["name"]: mount["mountPath"] for mount in server["volumeMounts"]}
        assert onebert == "onebert"
        if kind == "backup":
            assert claims["backup"] == "onebert-backup"
            # A folder in the volume, whose top may have a `lost+found`.
            assert arguments == ["store", "backup", f"{mounts['backup']}/onebert"]
        else:
            assert arguments == ["store", "gc"]


def test_the_pages_gpu_and_connections_are_added_to_an_overlay(tmp_path):
    with (example(tmp_path) / "kustomization.yaml").open("a", encoding="utf-8") as file:
        file.write("  - path: gpu.yaml\n")
    manifests = by_name([*render(tmp_path), yaml.safe_load((tmp_path / "egress.yaml").read_text(encoding="utf-8"))])
    template = manifests["Deployment", "onebert"]["spec"]["template"]
    [server] = template["spec"]["containers"]
    assert (server["resources"]["limits"]["nvidia.com/gpu"], len(server["volumeMounts"])) == ("1", 3)
    assert {entry["name"].removeprefix(PREFIX).lower() for entry in server["env"]} <= Settings.model_fields.keys()
    policy = manifests["NetworkPolicy", "onebert-egress"]
    assert policy["spec"]["podSelector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    for manifest in (manifests["Deployment", "onebert"], policy):
        assert kubernetes_validate.validate(manifest, VERSIONS[-1], strict=True)
