"""`onebert blend` as a user meets it: two versions become one file, which is pushed and answers between them."""

import re
import shlex
from pathlib import Path

from ended import refused, succeeded
from servers import Task, assert_answers

PAGE = (Path(__file__).parents[3] / "docs/guide/rollout.md").read_text(encoding="utf-8")
TASKS = [Task(seed=seed, training={"task": "tone"}) for seed in (1, 2)]
STORED = {"tone": TASKS}
TEXT = "the screen was broken"


def test_the_commands_of_the_page_make_a_version_that_answers_between_two(
    server, client, onebert, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ONEBERT_URL", server.url)
    [commands] = re.findall(r"```sh\n(.*?)```", PAGE.split("\n## Blends\n")[1], re.DOTALL)
    printed = [succeeded(onebert(*shlex.split(line)[1:]))[0] for line in commands.splitlines()]
    assert "is version 3" in printed[-1]
    # The model with the mean parameters: a bias task's are linear in its tensors.
    mean = Task()
    mean.tensors = {name: 0.8 * tensor + 0.2 * TASKS[1].tensors[name] for name, tensor in TASKS[0].tensors.items()}
    reply = client.send("POST", "/v1/tasks/tone@3/classify", json={"inputs": TEXT}).json()
    assert_answers(reply["results"][0], mean.scores(TEXT))
    manifest = client.send("GET", "/v1/tasks/tone/versions/3").json()["manifest"]
    assert [part["weight"] for part in manifest["training"]["blend"]] == [0.8, 0.2]


def test_a_blend_that_cannot_be_is_one_line_and_writes_nothing(onebert, tmp_path):
    for name, task in {"a": TASKS[0], "b": TASKS[1], "other": Task(seed=3, labels=2)}.items():
        (tmp_path / f"{name}.safetensors").write_bytes(task.file)
    a, b, other, out = (tmp_path / f"{name}.safetensors" for name in ("a", "b", "other", "out"))
    for parts, reason in [
        ((f"{a}=0.8", f"{b}=0.3"), "1 together"),
        ((f"{a}=1.5", f"{b}=-0.5"), "above 0"),
        ((f"{a}=nan", f"{b}=0.5"), "above 0"),
        ((f"{a}=1",), "two deltas or more"),
        ((f"{a}=0.5", f"{other}=0.5"), "differ in labels"),
        ((f"{a}=0.5", f"{tmp_path / 'none'}=0.5"), "none"),
    ]:
        assert reason in refused(onebert("blend", *parts, "--out", out))
    for part in (str(a), f"{a}=", f"{a}=half"):
        status, printed, error = onebert("blend", part, f"{b}=0.5", "--out", out)
        assert (status, printed) == (2, "")
        assert "is not FILE=WEIGHT" in error
    assert "is a file that is read" in refused(onebert("blend", f"{a}=0.5", f"{b}=0.5", "--out", a))
    assert not out.exists()
    assert a.read_bytes() == TASKS[0].file
