"""The alerts: each fires when it should and not otherwise, and the page says what to do about it."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
ALERTS = ROOT / "deploy/kubernetes/monitoring/alerts.yml"
# Series and the alerts that they give, for `promtool test rules`.
CASES = ROOT / "tests/unit/alerts.yml"


def rules():
    return [rule for group in yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"] for rule in group["rules"]]


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_each_alert_has_a_heading_that_says_what_to_do(rule):
    page = (ROOT / "docs/reference/monitoring.md").read_text(encoding="utf-8")
    assert re.search(rf"^### {rule['alert']}\n\n\S", page, re.MULTILINE)
    assert rule["annotations"]["runbook"] == f"docs/reference/monitoring.md#{rule['alert'].lower()}"
    assert rule["labels"]["severity"] in {"critical", "warning"}


def test_each_alert_is_seen_to_fire_and_to_be_silent():
    seen = {True: set(), False: set()}
    for case in yaml.safe_load(CASES.read_text(encoding="utf-8"))["tests"]:
        for asked in case["alert_rule_test"]:
            seen[bool(asked.get("exp_alerts"))].add(asked["alertname"])
    names = {rule["alert"] for rule in rules()}
    assert (seen[True], seen[False]) == (names, names)


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
@pytest.mark.parametrize("arguments", [["check", "rules", ALERTS], ["test", "rules", CASES]], ids=["check", "test"])
def test_prometheus_itself_reads_them_so(arguments):
    subprocess.run(["promtool", *arguments], check=True)
