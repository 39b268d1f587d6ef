"""The application of Ray Serve: which deployments there are, and what Ray is told about each."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from ray import serve
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy
from ray.serve.deployment import Application

from onebert_server.on_ray.front_end import FrontEnd
from onebert_server.on_ray.replica import Replica
from onebert_server.settings import Settings, load_settings
from onebert_store.errors import InvalidSettings

NAME = "onebert"
REPLICAS, FRONT_ENDS = "Replica", "FrontEnd"
# More front ends than any cluster has nodes.
MAX_NODES = 10_000
# Questions under way with one replica: it bounds by itself, in seconds, what it lets in.
MAX_ONGOING = 4096
# Seconds between two reports of a replica to the controller of Ray Serve.
REPORT_EVERY = 1
# Seconds over which its reports are averaged; Ray Serve takes no less.
LOOKED_BACK = 11
# So often a deployment is tried that fails when it starts, such as one with a base that is not there.
STARTS = 3
# What Ray Serve reads from the environment of each process: no second thread and event loop for calls, nor for choosing
# who is called.
ENVIRONMENT = {
    "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",
    "RAY_SERVE_RUN_ROUTER_IN_SEPARATE_LOOP": "0",
    "RAY_SERVE_REPLICA_AUTOSCALING_METRIC_PUSH_INTERVAL_S": str(REPORT_EVERY),
}


class Layout(BaseModel):
    """How many replicas there are, and of what.

    Attributes:
        replicas: N, or MIN-MAX by the work that is asked of them.
        cpus, gpus: what Ray reserves for each.
        busy: the share of its time that a replica is meant to compute; with more to do there are more replicas.
        grow_after, shrink_after: seconds for which more, or fewer, are needed before there are more, or fewer.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    replicas: Annotated[str, Field(pattern=r"^[1-9]\d{0,3}(-[1-9]\d{0,3})?$", coerce_numbers_to_str=True)] = "1"
    cpus: Annotated[int, Field(ge=1)] = 1
    gpus: Annotated[int, Field(ge=0)] = 0
    busy: Annotated[float, Field(gt=0, le=1)] = 0.7
    grow_after: Annotated[float, Field(ge=0)] = 5.0
    shrink_after: Annotated[float, Field(ge=0)] = 60.0

    @model_validator(mode="after")
    def _grows(self) -> "Layout":
        if self.least > self.most:
            raise ValueError("replicas are N, or MIN-MAX")
        return self

    @property
    def least(self) -> int:
        """Replicas that there are always."""
        return int(self.replicas.partition("-")[0])

    @property
    def most(self) -> int:
        """Replicas that there may be."""
        return int(self.replicas.rpartition("-")[2])


def build(args: dict[str, Any]) -> Application:
    """What a configuration file of Ray Serve names as `import_path`; settings are in the environment.

    Args:
        args: a Layout.

    Raises:
        InvalidSettings: the layout or a setting is wrong.
    """
    return application(load_settings(), layout_of(args))


def layout_of(args: Mapping[str, Any]) -> Layout:
    """A layout of what somebody wrote.

    Raises:
        InvalidSettings: it is none.
    """
    try:
        return Layout(**args)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = str(first["loc"][0]) if first["loc"] else "replicas"
        raise InvalidSettings(f"{where}: {first['msg'].removeprefix('Value error, ')}") from None


def application(settings: Settings, layout: Layout) -> Application:
    """Replicas, and a front end on each node that runs some.

    Raises:
        InvalidSettings: the settings are for one server alone.
    """
    settings = _everywhere(settings, layout)
    # What OpenTelemetry reads from the environment, as this process has it. It may hold credentials, so it goes the way
    # of the settings: Ray shows the environments that it is told of in its dashboard and logs, and not what is bound.
    variables = {name: value for name, value in os.environ.items() if name.startswith("OTEL_")}
    replicas = serve.deployment(
        name=REPLICAS,
        ray_actor_options={"num_cpus": layout.cpus, "num_gpus": layout.gpus, "runtime_env": {"env_vars": ENVIRONMENT}},
        max_ongoing_requests=MAX_ONGOING,
        autoscaling_config=AutoscalingConfig(
            min_replicas=layout.least,
            max_replicas=layout.most,
            upscale_delay_s=layout.grow_after,
            downscale_delay_s=layout.shrink_after,
            look_back_period_s=LOOKED_BACK,
            policy=AutoscalingPolicy(
                policy_function="onebert_server.on_ray.scaling:ByWork", policy_kwargs={"busy": layout.busy}
            ),
        ),
        request_router_config={"request_router_class": "onebert_server.on_ray.router:ByTask"},
        graceful_shutdown_timeout_s=settings.shutdown_timeout + 10,
        health_check_period_s=5,
        health_check_timeout_s=30,
        logging_config={"enable_access_log": False},
        max_constructor_retry_count=STARTS,
    )(Replica).bind(settings, variables)
    front_ends = serve.deployment(
        name=FRONT_ENDS,
        # Of each node it takes what hardly any replica needs: tokenizing is done beside what is computed.
        ray_actor_options={"num_cpus": 0.01, "runtime_env": {"env_vars": ENVIRONMENT}},
        max_replicas_per_node=1,
        autoscaling_config=AutoscalingConfig(
            min_replicas=1,
            max_replicas=MAX_NODES,
            upscale_delay_s=0,
            downscale_delay_s=10,
            policy=AutoscalingPolicy(policy_function="onebert_server.on_ray.scaling:one_a_node"),
        ),
        # On a node that ends Ray Serve stops first what may take longest: a front end drains while replicas answer.
        graceful_shutdown_timeout_s=settings.drain_delay + settings.shutdown_timeout + 15,
        graceful_shutdown_wait_loop_s=0.1,
        health_check_period_s=5,
        logging_config={"enable_access_log": False},
        max_constructor_retry_count=STARTS,
    )(FrontEnd)
    return front_ends.bind(settings, replicas, variables)


def _everywhere(settings: Settings, layout: Layout) -> Settings:
    """The settings as they mean the same in every process of the cluster.

    Raises:
        InvalidSettings: they are for one server alone.
    """
    if settings.registry is None or settings.registry.startswith("sqlite:"):
        raise InvalidSettings("--ray needs a registry that servers share: ONEBERT_REGISTRY=postgresql://…")
    if settings.front_ends:
        raise InvalidSettings("ONEBERT_FRONT_ENDS: on a cluster there is one front end on each node")
    device = "cuda" if layout.gpus else "cpu"
    if settings.device not in {"auto", device}:
        raise InvalidSettings("--device on a cluster is cuda with --gpus, else cpu")
    base = settings.base
    if base is not None and Path(base).expanduser().is_dir():
        base = str(Path(base).expanduser().resolve())
    return settings.model_copy(
        update={
            "base": base,
            "data_dir": settings.data_dir.resolve(),
            "device": device,
            "threads": settings.threads or layout.cpus,
        }
    )
