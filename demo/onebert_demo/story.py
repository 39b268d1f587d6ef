"""The demo's steps; every step checks the results that it shows."""

import random
import tempfile
import time
from pathlib import Path

from onebert_demo import show
from onebert_demo.processes import ending_on_signals
from onebert_demo.show import Json
from onebert_demo.tasks import ROUTING, SAME, TASKS, TONE, Task
from onebert_demo.traffic import Item, background_requests, measure
from onebert_server.client import Client
from onebert_server.run.serving import ChildServer, serving
from onebert_store.command.console import say
from onebert_store.command.process import record_of
from onebert_store.errors import OneBertError

ROUTED = "Since the update I can't log in any more, it says that my password is wrong."
MIXED: list[Item] = [
    (ROUTING.name, "The parcel was due on Monday and the tracking page has not changed since."),
    (TONE.name, "We waited an hour for two cold soups, and nobody said sorry."),
    (SAME.name, ("Can I freeze bread?", "Does bread keep in the freezer?")),
    (ROUTING.name, "The invoice shows a price that I never agreed to."),
    (TONE.name, "Small, quiet, spotless, and the owner drew us a map of her favorite walks."),
    (SAME.name, ("Can I freeze bread?", "Which flour makes the best bread?")),
]
CLIENTS, REQUESTS, REQUEST_INPUTS = 4, 200, 16


def tell(keep: bool) -> None:
    """Runs the whole demo, and leaves the server up until Ctrl-C if `keep`; raises OneBertError if a step fails."""
    started = time.monotonic()
    with ending_on_signals(), tempfile.TemporaryDirectory(prefix="onebert-demo-") as folder:
        work = Path(folder)
        trained = train_three(work)
        show.chapter("Start the server")
        show.command("onebert serve --port 0")
        with serving(work / "data") as server, Client(server.url) as client:
            say(f"It listens on {server.url} and has no task yet.")
            upload_while_answering(server, client, work)
            classify_a_mix(client)
            compare_with_the_trainer(client, trained)
            measure_a_load(server)
            move_an_alias_and_back(client, work)
            ask_several_tasks(client)
            if keep:
                show.end(time.monotonic() - started)
                keep_up(server, work)
            else:
                expect(server.stop(), "the server did not end cleanly")
                show.end(time.monotonic() - started)


def train_three(work: Path) -> dict[str, Json]:
    """Trains one delta per task; returns the trainer's records by task."""
    show.chapter("Train three deltas for one frozen encoder: two heads found exactly, one method that takes steps")
    trained = {task.name: _train(task, _file(work, task)) for task in TASKS}
    show.trained({task.name: task.method for task in TASKS}, trained)
    return trained


def upload_while_answering(server: ChildServer, client: Client, work: Path) -> None:
    """Uploads the first task, then the others while a second client keeps asking the first task."""
    show.chapter("Upload the deltas while the server answers")
    first, *later_tasks = TASKS
    pushed = client.push(first.name, _file(work, first))
    uploads = []
    with background_requests(server.url, first.name, [example.text for example in first.test]) as answered:
        for task in later_tasks:
            began = time.monotonic()
            client.push(task.name, _file(work, task))
            answer = client.classify(task.name, task.test[0].text)
            ended = time.monotonic()
            expect(answer.version == 1, f"{task.name} is not answered by the version just uploaded")
            uploads.append(show.Upload(task.name, began, ended))
    during = [
        [answer for answer in answered if answer.sent < upload.ended and answer.received > upload.began]
        for upload in uploads
    ]
    expect(all(during), "nothing was answered during an upload")
    expect(
        all(result.digest == pushed.digest for answers in during for answer in answers for result in answer.results),
        f"an upload changed which version answers {first.name}",
    )
    show.uploads(first.name, uploads, during)


def classify_a_mix(client: Client) -> None:
    """Sends one request with texts for all tasks."""
    show.chapter("Classify a mixed batch: three tasks, single texts and pairs, one request")
    answers = client.classify_items(MIXED)
    expect([answer.task for answer in answers] == [task for task, _ in MIXED], "the answers are not in order")
    show.answers([text for _, text in MIXED], answers)


def compare_with_the_trainer(client: Client, trained: dict[str, Json]) -> None:
    """Classifies the test splits over HTTP and checks that the accuracies equal the trainer's."""
    show.chapter("Answer the test splits over HTTP, and compare with the trainer")
    served = {task.name: _accuracy(client, task) for task in TASKS}
    show.accuracies(trained, served)
    for name, accuracy in served.items():
        printed = trained[name]["test"]["accuracy"]
        expect(abs(accuracy - printed) < 1e-9, f"{name}: the server's accuracy is not the trainer's")


def measure_a_load(server: ChildServer) -> None:
    """Sends mixed requests from several clients at a time."""
    show.chapter(f"Measure: {CLIENTS} clients, {REQUESTS} requests of {REQUEST_INPUTS} texts of all tasks, mixed")
    items: list[Item] = [(task.name, example.text) for task in TASKS for example in task.test]
    chance = random.Random(0)  # noqa: S311 - a shuffle, not a secret
    requests = [chance.sample(items, REQUEST_INPUTS) for _ in range(REQUESTS)]
    load = measure(server.url, requests, CLIENTS)
    expect(load.texts == REQUESTS * REQUEST_INPUTS, "some texts were not answered")
    show.load(load)


def move_an_alias_and_back(client: Client, work: Path) -> None:
    """Makes a second version live, then the first one again."""
    show.chapter("Train a second version, move the alias live to it, and move it back")
    file = work / f"{ROUTING.name}-2.safetensors"
    _train(ROUTING, file, "--method", "bitfit", "--max-steps", "30")
    answers = [("version 1 uploaded", client.classify(ROUTING.name, ROUTED))]
    version = client.push(ROUTING.name, file).version
    answers.append((f"version {version} uploaded", client.classify(ROUTING.name, ROUTED)))
    client.move_alias(ROUTING.name, "live", version, expected=1)
    answers.append((f"live moved to {version}", client.classify(ROUTING.name, ROUTED)))
    client.move_alias(ROUTING.name, "live", 1, expected=version)
    answers.append(("live moved back to 1", client.classify(ROUTING.name, ROUTED)))
    show.versions(ROUTING.name, ROUTED, answers)
    expect([answer.version for _, answer in answers] == [1, 1, 2, 1], "the alias is not where it was moved")
    expect(len({answer.digest for _, answer in answers}) == 2, "two versions have one digest")


def ask_several_tasks(client: Client) -> None:
    """Sends one text to all tasks on single texts."""
    show.chapter("Fan out: one text, tokenized once, for every task on single texts")
    names = [ROUTING.name, TONE.name]
    answers = client.fanout(ROUTED, names)
    expect([answer.task for answer in answers] == names, "the fan-out did not ask the tasks it was given")
    show.fanned_out(ROUTED, answers)


def keep_up(server: ChildServer, work: Path) -> None:
    """Leaves the server up until Ctrl-C."""
    show.try_this(server.url, work)
    try:
        server.wait()
    except KeyboardInterrupt:
        expect(server.stop(), "the server did not end cleanly")
        say("Stopped.")
    else:
        raise OneBertError("the server ended by itself")


def expect(holds: bool, otherwise: str) -> None:
    """Raises OneBertError with the sentence `otherwise` if a check fails."""
    if not holds:
        raise OneBertError(otherwise)


def _file(work: Path, task: Task) -> Path:
    return work / f"{task.name}.safetensors"


def _train(task: Task, out: Path, *options: str) -> Json:
    recipe = ["--task", task.name, *(options or ("--method", task.method))]
    show.command(f"onebert train {' '.join(recipe)} --data {task.folder}")
    with show.progress(task.name) as report:
        return record_of("train", *recipe, "--data", str(task.folder), "--out", str(out), report=report)


def _accuracy(client: Client, task: Task) -> float:
    results = client.classify(task.name, [example.text for example in task.test])
    right = sum(result.label == example.label for result, example in zip(results, task.test, strict=True))
    return right / len(task.test)
