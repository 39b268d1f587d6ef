"""The RayService of the plug-in: what Ray Serve and Kubernetes say of it without KubeRay, and that it adds up."""

import tomllib
from pathlib import Path

import kubernetes_validate
import pytest
import yaml
from ray.serve.schema import ServeDeploySchema

from kustomize import by_name, render
from onebert_ray.application import FRONT_ENDS, NAME, REPLICAS, application, layout_of
from onebert_server.settings import Settings

ROOT = Path(__file__).parents[2]
FOUND = by_name(render(ROOT / "plugins/onebert-ray/kubernetes"))
SERVICE = FOUND["RayService", "onebert"]["spec"]
CLUSTER = SERVICE["rayClusterConfig"]
HEAD = CLUSTER["headGroupSpec"]
[WORKER] = CLUSTER["workerGroupSpecs"]
CONFIG = yaml.safe_load(SERVICE["serveConfigV2"])
[SERVED] = CONFIG["applications"]

groups = pytest.mark.parametrize("group", [HEAD, WORKER], ids=["head", "worker"])


def container(group):
    [server] = group["template"]["spec"]["containers"]
    return server


def ports(group):
    return {port["name"]: port["containerPort"] for port in container(group)["ports"]}


def deployments(monkeypatch):
    """What the application of the manifest tells Ray Serve of its deployments, by name."""
    for entry in container(WORKER)["env"]:
        monkeypatch.setenv(entry["name"], entry.get("value", "postgresql://host/name,a-key-of-this-test"))
    built = application(Settings(blobs=None), layout_of(SERVED["args"]))
    front_ends = built._bound_deployment
    replicas = front_ends.init_args[1]._bound_deployment
    return {deployment.name: deployment for deployment in (front_ends, replicas)}


@groups
@pytest.mark.parametrize("version", ["1.31", kubernetes_validate.latest_version().rpartition(".")[0]])
def test_a_pod_is_valid_and_has_no_unknown_field(group, version):
    pod = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "pod"}, "template": group["template"]}
    assert kubernetes_validate.validate(pod, version, strict=True) == version


def test_ray_serve_takes_the_configuration_and_the_application_its_arguments():
    config = ServeDeploySchema.model_validate(CONFIG)
    assert config.proxy_location == "Disabled"
    [served] = config.applications
    assert (served.name, served.route_prefix) == (NAME, None)
    module, _, name = served.import_path.partition(":")
    assert (module, name) == (application.__module__, "build")
    assert layout_of(served.args).max_replicas == WORKER["replicas"] == WORKER["minReplicas"] == WORKER["maxReplicas"]


def test_a_worker_has_room_for_one_replica(monkeypatch):
    asked = {name: deployment.ray_actor_options["num_cpus"] for name, deployment in deployments(monkeypatch).items()}
    cores = float(WORKER["rayStartParams"]["num-cpus"])
    assert asked[REPLICAS] + asked[FRONT_ENDS] <= cores < 2 * asked[REPLICAS]
    # Ray hands out no cores that the pod does not have.
    assert cores == float(container(WORKER)["resources"]["requests"]["cpu"])
    assert float(HEAD["rayStartParams"]["num-cpus"]) == 0
    for group in (HEAD, WORKER):
        shm = next(volume for volume in group["template"]["spec"]["volumes"] if volume["name"] == "shm")["emptyDir"]
        assert shm == {"medium": "Memory", "sizeLimit": "256Mi"}
        assert int(group["rayStartParams"]["object-store-memory"]) < 256 * 2**20


def test_ray_is_that_of_the_image_and_asks_for_a_token():
    pinned = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
    assert CLUSTER["rayVersion"] == pinned["ray"]
    assert CLUSTER["authOptions"] == {"mode": "token"}
    # A mode in the environment would win over the one above.
    assert not [e for g in (HEAD, WORKER) for e in container(g)["env"] if e["name"].startswith("RAY_AUTH")]
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    page = (ROOT / "docs/reference/kubernetes.md").read_text(encoding="utf-8")
    assert "--build-arg EXTRAS=minilm,postgresql,s3,samples,oidc,otel,ray" in page
    assert extras.keys() >= {"minilm", "postgresql", "s3", "samples", "oidc", "otel", "ray"}


def test_clients_reach_workers_alone_and_rays_ports_only_each_other_and_kuberay():
    labels = {name: group["template"]["metadata"]["labels"] for name, group in (("head", HEAD), ("worker", WORKER))}

    def chosen(selector):
        return {name for name, label in labels.items() if selector.items() <= label.items()}

    service = FOUND["Service", "onebert"]["spec"]
    assert chosen(service["selector"]) == {"worker"}
    [port] = service["ports"]
    assert ports(WORKER)[port["targetPort"]] == port["port"] == Settings.model_fields["port"].default
    assert chosen(FOUND["PodDisruptionBudget", "onebert"]["spec"]["selector"]["matchLabels"]) == {"worker"}
    policies = {name: policy["spec"] for (kind, name), policy in FOUND.items() if kind == "NetworkPolicy"}
    assert {name: chosen(spec["podSelector"]["matchLabels"]) for name, spec in policies.items()} == {
        "onebert": {"worker"},
        "onebert-ray": {"head", "worker"},
        "onebert-head": {"head"},
        "onebert-upkeep": set(),
    }
    # From everybody that is let in, one port of each; from Ray's own pods all ports.
    [clients] = policies["onebert"]["ingress"]
    assert [port["port"] for port in clients["ports"]] == ["http"]
    [operator] = policies["onebert-head"]["ingress"]
    assert [port["port"] for port in operator["ports"]] == ["dashboard"]
    [rule] = policies["onebert-ray"]["ingress"]
    assert rule.keys() == {"from"}
    [peer] = rule["from"]
    assert peer.keys() == {"podSelector"}
    assert chosen(peer["podSelector"]["matchLabels"]) == {"head", "worker"}
    assert policies["onebert-ray"]["policyTypes"] == ["Ingress", "Egress"]


def test_there_is_time_to_leave_a_node(monkeypatch):
    entries = {entry["name"]: entry.get("value") for entry in container(WORKER)["env"]}
    drained = float(entries["RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"])
    # Ray Serve stops a deployment so long before the end that it may take its whole time; the front end first.
    stopping = {
        name: deployment._deployment_config.graceful_shutdown_timeout_s
        for name, deployment in deployments(monkeypatch).items()
    }
    assert stopping[REPLICAS] < stopping[FRONT_ENDS] <= drained
    for group in (HEAD, WORKER):
        assert container(group)["env"] == container(WORKER)["env"]
        assert group["template"]["spec"]["terminationGracePeriodSeconds"] >= drained + 20
    # Readiness is lost, and a balancer has heard of it, while requests are still answered.
    readiness = container(WORKER)["readinessProbe"]
    assert readiness["periodSeconds"] * readiness["failureThreshold"] < float(entries["ONEBERT_DRAIN_DELAY"])
