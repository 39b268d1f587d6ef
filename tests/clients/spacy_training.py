"""spaCy's own writers: rows of text and spans as its training JSON and as documents in the folder."""

import json
import sys
from pathlib import Path

import spacy
from spacy.training.gold_io import docs_to_json

folder, rows = Path(sys.argv[1]), json.loads(sys.argv[2])
nlp = spacy.blank("en")
nlp.add_pipe("sentencizer")
docs = []
for text, spans, _ in rows:
    doc = nlp(text)
    doc.set_ents([doc.char_span(start, end, label=label) for start, end, label in spans])
    docs.append(doc)
(folder / "training.json").write_text(json.dumps([docs_to_json(docs)]))
(folder / "docs.json").write_text(json.dumps([doc.to_json() for doc in docs]))
print(json.dumps(len(docs)))
