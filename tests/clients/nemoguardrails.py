"""NeMo Guardrails by a configuration alone: what its input rail says; URL, engine, task, labels, texts as JSON."""

import json
import logging
import sys

from nemoguardrails import LLMRails, RailsConfig

url, engine, task, labels, texts = *sys.argv[1:4], json.loads(sys.argv[4]), json.loads(sys.argv[5])
logging.disable()
# YAML, which JSON is, too.
classifier = {"engine": engine, "model": task, "base_url": url, "threshold": 0.5, "blocked_labels": labels}
flow = 'hf classifier check input $classifier="guard"'
content = {
    "models": [],
    "rails": {"config": {"hf_classifier": {"guard": classifier}}, "input": {"flows": [flow]}},
}
rails = LLMRails(RailsConfig.from_content(yaml_content=json.dumps(content)))


def checked(text):
    try:
        return rails.check(messages=[{"role": "user", "content": text}]).status.value
    except Exception as error:
        return f"{type(error).__name__}: {error}"


print(json.dumps([checked(text) for text in texts]))
