"""The commands of the page on verdicts, with the lines that it shows."""

import itertools
import re
import shlex
from pathlib import Path

from ended import succeeded
from servers import Task

PAGE = (Path(__file__).parents[3] / "docs/guide/release.md").read_text(encoding="utf-8")
STORED = {"tone": [Task(seed=1), Task(seed=2)]}
WORDS = ["late", "broken", "parcel", "good", "screen", "bad", "refund", "great", "invoice", "password", "order"]
TEXTS = [" ".join(words) for words in itertools.combinations(WORDS, 2)]


def of_section(name):
    """The commands of a section, and the lines that it shows."""
    section = PAGE.split(f"\n## {name}\n")[1].split("\n## ")[0]
    blocks = dict(re.findall(r"```(\w*)\n(.*?)```", section, re.DOTALL))
    return [shlex.split(line)[1:] for line in blocks["sh"].splitlines()], blocks.get("", "")


def test_verdicts_as_the_page_has_them(server, client, onebert):
    (shadow, show), shown = of_section("Verdicts")
    assert "shadow 2 began" in succeeded(onebert(*shadow, "--url", server.url))[0]
    labels = []
    for ref in ("tone@1", "tone@2"):
        results = client.send("POST", f"/v1/tasks/{ref}/classify", json={"inputs": TEXTS}).json()["results"]
        labels.append([result["label"] for result in results])
    both = list(zip(TEXTS, *labels, strict=True))
    won = [(text, right) for text, wrong, right in both if right != wrong][:9]
    alike = [(text, right) for text, other, right in both if right == other][:6]
    items = [{"task": "tone", "text": text, "label": label, "identifier": text} for text, label in won + alike]
    assert client.send("POST", "/v1/feedback", json={"data": items}).status_code == 200
    # However wide the terminal is.
    assert " ".join(shown.split()) in " ".join(succeeded(onebert(*show, "--url", server.url))[0].split())
