"""Builds the Ray Serve application: its deployments and their options."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from ray import serve
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy
from ray.serve.deployment import Application

from onebert_ray.front_end import FrontEnd
from onebert_ray.replica import Replica
from onebert_server.settings import OF_FRONT_ENDS, Settings, load_settings
from onebert_store.errors import InvalidSettings

NAME = "onebert"
REPLICAS, FRONT_ENDS = "Replica", "FrontEnd"
# Above the number of nodes of any cluster.
MAX_NODES = 10_000
# Concurrent calls to one replica. High, because a replica limits admission itself, in seconds of work.
MAX_ONGOING = 4096
# Seconds between a replica's reports to the Ray Serve controller.
REPORT_EVERY = 1
# Seconds over which reports are averaged; 11 is Ray Serve's minimum.
LOOK_BACK = 11
# Attempts to start a deployment that fails, for instance because its base does not exist.
STARTS = 3
# Ray Serve reads these in each process: calls and routing run on the main event loop, without a second thread.
ENVIRONMENT = {
    "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",
    "RAY_SERVE_RUN_ROUTER_IN_SEPARATE_LOOP": "0",
    "RAY_SERVE_REPLICA_AUTOSCALING_METRIC_PUSH_INTERVAL_S": str(REPORT_EVERY),
}


class Layout(BaseModel):
    """The number of replicas (N, or MIN-MAX) and their resources.

    `busy` is the target share of time that a replica computes. The load must persist for `grow_after` or `shrink_after`
    seconds before Ray Serve adds or removes replicas.
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
        if self.min_replicas > self.max_replicas:
            raise ValueError("replicas are N, or MIN-MAX")
        return self

    @property
    def min_replicas(self) -> int:
        return int(self.replicas.partition("-")[0])

    @property
    def max_replicas(self) -> int:
        return int(self.replicas.rpartition("-")[2])


def build(args: dict[str, Any]) -> Application:
    """Builds the application for a Ray Serve configuration file; `args` has the fields of Layout."""
    return application(load_settings(), layout_of(args))


def layout_of(args: Mapping[str, Any]) -> Layout:
    """Validates a layout."""
    try:
        return Layout(**args)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = str(first["loc"][0]) if first["loc"] else "replicas"
        raise InvalidSettings(f"{where}: {first['msg'].removeprefix('Value error, ')}") from None


def application(settings: Settings, layout: Layout) -> Application:
    """Builds the replicas and one front end per node that runs replicas."""
    settings = _everywhere(settings, layout)
    # OpenTelemetry's variables may hold credentials. Pass them as bound arguments like the settings, because Ray shows
    # runtime environments in its dashboard and logs.
    variables = {name: value for name, value in os.environ.items() if name.startswith("OTEL_")}
    replicas = serve.deployment(
        name=REPLICAS,
        ray_actor_options={"num_cpus": layout.cpus, "num_gpus": layout.gpus, "runtime_env": {"env_vars": ENVIRONMENT}},
        max_ongoing_requests=MAX_ONGOING,
        autoscaling_config=AutoscalingConfig(
            min_replicas=layout.min_replicas,
            max_replicas=layout.max_replicas,
            upscale_delay_s=layout.grow_after,
            downscale_delay_s=layout.shrink_after,
            look_back_period_s=LOOK_BACK,
            policy=AutoscalingPolicy(policy_function="onebert_ray.scaling:ByWork", policy_kwargs={"busy": layout.busy}),
        ),
        request_router_config={"request_router_class": "onebert_ray.router:ByTask"},
        graceful_shutdown_timeout_s=settings.shutdown_timeout + 10,
        health_check_period_s=5,
        health_check_timeout_s=30,
        logging_config={"enable_access_log": False},
        max_constructor_retry_count=STARTS,
    )(Replica).bind(settings, variables)
    front_ends = serve.deployment(
        name=FRONT_ENDS,
        # A small share of a CPU, so that the front end fits on a node whose CPUs the replicas reserve.
        ray_actor_options={"num_cpus": 0.01, "runtime_env": {"env_vars": ENVIRONMENT}},
        max_replicas_per_node=1,
        autoscaling_config=AutoscalingConfig(
            min_replicas=1,
            max_replicas=MAX_NODES,
            upscale_delay_s=0,
            downscale_delay_s=10,
            policy=AutoscalingPolicy(policy_function="onebert_ray.scaling:one_a_node"),
        ),
        # A leaving node stops the longest timeout first, so front ends drain while replicas answer.
        graceful_shutdown_timeout_s=settings.drain_delay + settings.shutdown_timeout + 15,
        graceful_shutdown_wait_loop_s=0.1,
        health_check_period_s=5,
        logging_config={"enable_access_log": False},
        max_constructor_retry_count=STARTS,
    )(FrontEnd)
    # Not `Settings(…)`, which would read this command's environment again.
    of_front_ends = Settings.model_construct(**settings.model_dump(include=OF_FRONT_ENDS))
    return front_ends.bind(of_front_ends, replicas, variables)


def _everywhere(settings: Settings, layout: Layout) -> Settings:
    if settings.registry is None or settings.registry.startswith("sqlite:"):
        raise InvalidSettings("--ray needs a registry that servers share: ONEBERT_REGISTRY=postgresql://…")
    if settings.front_ends:
        raise InvalidSettings("ONEBERT_FRONT_ENDS: on a cluster there is one front end on each node")
    device = "cuda" if layout.gpus else "cpu"
    if settings.device not in {"auto", device}:
        raise InvalidSettings("--device on a cluster is cuda with --gpus, else cpu")
    folders = (Path(name).expanduser() for name in settings.base)
    base = [
        str(folder.resolve()) if folder.is_dir() else name for folder, name in zip(folders, settings.base, strict=True)
    ]
    return settings.model_copy(
        update={
            "base": tuple(base),
            "data_dir": settings.data_dir.resolve(),
            "device": device,
            "threads": settings.threads or layout.cpus,
        }
    )
