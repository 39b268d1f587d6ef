"""Label Studio's own converter: rows of text, spans and choices as tasks, JSON-MIN and CSV in the folder."""

import json
import sys
from pathlib import Path

from label_studio_sdk.converter import Converter

folder, rows = Path(sys.argv[1]), json.loads(sys.argv[2])
CONFIG = """<View><Text name="text" value="$text"/>
<Labels name="ner" toName="text"><Label value="city"/><Label value="person"/></Labels>
<Choices name="tone" toName="text" choice="multiple"><Choice value="good"/><Choice value="fast"/></Choices></View>"""


def annotation(number, text, spans, choices):
    regions = [
        {"type": "labels", "value": {"start": start, "end": end, "text": text[start:end], "labels": [label]}}
        | {"id": f"r{start}", "from_name": "ner", "to_name": "text"}
        for start, end, label in spans
    ]
    chosen = {"id": "c", "from_name": "tone", "to_name": "text", "type": "choices", "value": {"choices": choices}}
    return {"id": number, "completed_by": 1, "was_cancelled": False, "result": [*regions, chosen]}


tasks = [
    {"id": number, "data": {"text": text}, "annotations": [annotation(number, text, *answers)], "predictions": []}
    for number, (text, *answers) in enumerate(rows, 1)
]
(folder / "tasks.json").write_text(json.dumps(tasks))
converter = Converter(CONFIG, str(folder))
converter.convert_to_json_min(str(folder / "tasks.json"), str(folder), is_dir=False)
converter.convert_to_csv(str(folder / "tasks.json"), str(folder), is_dir=False, sep=",", header=True)
print(json.dumps(sorted(path.name for path in folder.iterdir())))
