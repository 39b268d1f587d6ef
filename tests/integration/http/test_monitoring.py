"""Alerts, dashboard and the autoscaler's rule ask for what a running server gives: metrics by name, type and label."""

import json
import re
from pathlib import Path

import httpx
import promql_parser as promql
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from onebert_server.telemetry.metrics import Metrics
from onebert_store import errors
from servers import Task

KUBERNETES = Path(__file__).parents[3] / "deploy/kubernetes"
MONITORING = KUBERNETES / "monitoring"
# What Prometheus says of a target itself; `pod` by the operator's ServiceMonitor alone.
OF_TARGETS = {"job", "instance", "namespace", "pod"}
OF_COUNTERS = {"rate", "increase"}
OF_GAUGES = {"avg_over_time"}
# What Grafana, and the adapter for autoscalers, put in before Prometheus reads it.
PLACEHOLDERS = {
    "$__rate_interval": "5m",
    "$task": ".*",
    "<<.GroupBy>>": "pod",
    "<<.LabelMatchers>>": 'namespace="default",pod=~"a|b"',
    "<<.Series>>": "onebert_queue_seconds",
}


def filled(expression):
    for placeholder, value in PLACEHOLDERS.items():
        expression = expression.replace(placeholder, value)
    return expression


def of_alerts():
    read = yaml.safe_load((MONITORING / "alerts.yml").read_text(encoding="utf-8"))
    return {rule["alert"]: rule["expr"] for group in read["groups"] for rule in group["rules"]}


def of_dashboard():
    board = json.loads((MONITORING / "dashboard.json").read_text(encoding="utf-8"))
    panels = [panel for panel in board["panels"] if panel["type"] != "row"]
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    expressions = {
        f"{panel['title']} {target['refId']}": target["expr"] for panel in panels for target in panel["targets"]
    }
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            [selector] = re.findall(r"label_values\((.+), \w+\)", variable["query"]["query"])
            expressions[variable["name"]] = selector
    return expressions


def of_adapter():
    rules = yaml.safe_load((MONITORING / "adapter.yml").read_text(encoding="utf-8"))["rules"]
    return {f"{rule['name']['as']} {field}": rule[field] for rule in rules for field in ("seriesQuery", "metricsQuery")}


EXPRESSIONS = of_alerts() | of_dashboard() | of_adapter()


@pytest.fixture(scope="module")
def families(server, client):
    """The metrics of a server that has answered, refused and taken an upload, by their names; and their labels."""
    client.push("tone", Task().file)
    client.classify("tone", "good")
    with pytest.raises(errors.TaskNotFound):
        client.classify("nobody", "good")
    of_name = {
        family.name: family for family in text_string_to_metric_families(httpx.get(f"{server.url}/metrics").text)
    }
    # Counts that a test cannot bring about at will; their labels are those that the server gives them.
    counted = Metrics()
    counted.count_dropped("deadline", 1)
    counted.count_left(1, 1, 1)
    for family in text_string_to_metric_families(counted.exposition().decode()):
        if family.name in of_name:
            of_name[family.name].samples += family.samples
    # There is a sample for each alarm; test_watch_http.py has the labels of a real one.
    of_name["onebert_task_alarm"].add_sample("onebert_task_alarm", {"task": "tone", "version": "1"}, 1)
    return of_name


def nodes(expression):
    parts = []
    promql.walk(promql.parse(filled(expression)), parts.append)
    return parts


def family_of(name, families):
    """The family that a series belongs to."""
    base = re.sub(r"_(total|bucket|sum|count)$", "", name)
    return families[name if name in families else base]


def selectors(node):
    return [part for part in nodes(node.prettify()) if isinstance(part, promql.VectorSelector)]


def codes():
    classes = [error for error in vars(errors).values() if isinstance(error, type)]
    return {error.code for error in classes if issubclass(error, errors.OneBertError)}


@pytest.mark.parametrize("expression", EXPRESSIONS.values(), ids=EXPRESSIONS)
def test_an_expression_asks_for_what_is_there(expression, families):
    series = [node for node in nodes(expression) if isinstance(node, promql.VectorSelector)]
    assert series
    for selector in series:
        if selector.name == "up":
            continue
        family = family_of(selector.name, families)
        samples = [sample for sample in family.samples if sample.name == selector.name]
        assert samples, f"{selector.name} is not a series of {family.name}"
        for matcher in selector.matchers.matchers:
            if matcher.name in OF_TARGETS:
                continue
            values = {sample.labels[matcher.name] for sample in samples}
            if matcher.name == "code":
                assert set(matcher.value.split("|")) <= codes()
            else:
                assert any(re.fullmatch(matcher.value, value) for value in values), (matcher.value, values)


@pytest.mark.parametrize("expression", EXPRESSIONS.values(), ids=EXPRESSIONS)
def test_functions_fit_the_types_of_what_they_are_given(expression, families):
    for node in nodes(expression):
        if isinstance(node, promql.Call):
            types = {family_of(selector.name, families).type for selector in selectors(node) if selector.name != "up"}
            if node.func.name in OF_COUNTERS:
                assert types <= {"counter", "histogram"}
            elif node.func.name in OF_GAUGES:
                assert types == {"gauge"}
            elif node.func.name == "histogram_quantile":
                assert all(selector.name.endswith("_bucket") for selector in selectors(node))
                assert "le" in node.args[1].modifier.labels
        if isinstance(node, promql.AggregateExpr) and node.modifier is not None:
            for selector in selectors(node.expr):
                [*samples] = (
                    sample for sample in family_of(selector.name, families).samples if sample.name == selector.name
                )
                assert set(node.modifier.labels) <= samples[0].labels.keys() | OF_TARGETS


def test_the_autoscaler_asks_for_what_the_adapter_gives():
    scaler = yaml.safe_load((KUBERNETES / "overlays/replicas/autoscaler.yaml").read_text(encoding="utf-8"))
    [rule] = yaml.safe_load((MONITORING / "adapter.yml").read_text(encoding="utf-8"))["rules"]
    [metric] = scaler["spec"]["metrics"]
    assert metric["pods"]["metric"]["name"] == rule["name"]["as"]
    assert re.fullmatch(rule["name"]["matches"], PLACEHOLDERS["<<.Series>>"])
    assert rule["seriesQuery"].startswith(PLACEHOLDERS["<<.Series>>"])
