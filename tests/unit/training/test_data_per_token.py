"""Tagged words and answers in contexts are read in every accepted form, and refused with one clear line."""

import json

import pytest

from labeled_files import WRITERS as BY_ENDING
from onebert_encoder.text.tokens import Alignment
from onebert_store.errors import InvalidData
from onebert_training.data.dataset import load_dataset, load_split
from onebert_training.data.options import DataOptions, ReadOptions
from onebert_training.tasks.reading import answer_tokens

SENTENCES = [
    (["Anna", "Schmidt", "flew", "to", "Oslo", "."], ["B-PER", "I-PER", "O", "O", "B-LOC", "O"]),
    (["[", "The", "U.N.", "met", "Anna", "]"], ["O", "O", "B-ORG", "O", "B-PER", "O"]),
    (["New", "Zealand", "won"], ["B-LOC", "I-LOC", "O"]),
    (["Bank", "of", "England"], ["B-ORG", "I-ORG", "I-ORG"]),
]
TAGS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC", "B-ORG", "I-ORG"]

CONTEXT = "The Panthers gave up just 308 points, ranking sixth in the league."
QUESTIONS = [
    ("How many points did they give up?", {"text": ["308", "308 points", "308"], "answer_start": [26, 26, 26]}),
    ("Where did they rank?", {"text": ["sixth"], "answer_start": [46]}),
]
ACCEPTED = ((26, "308"), (26, "308 points"))


def write(path, header, rows):
    content = BY_ENDING[path.suffix[1:]](rows, header)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())


def load(folder, **kwargs):
    return load_dataset(str(folder), DataOptions(**kwargs))


def joined(rows):
    return [(" ".join(words), " ".join(map(str, tags))) for words, tags in rows]


def by_index(rows):
    return [(words, [TAGS.index(tag) for tag in tags]) for words, tags in rows]


@pytest.mark.parametrize(
    ("ending", "header", "rows", "facts"),
    [
        ("csv", ("sentence1", "label"), joined(by_index(SENTENCES)), {"task_type": "token", "labels": TAGS}),
        ("csv", ("words", "tags"), SENTENCES, {"labels": TAGS}),
        ("csv", ("text", "ner_tags"), joined(SENTENCES), {"labels": TAGS}),
        ("jsonl", ("tokens", "ner_tags"), by_index(SENTENCES), {"labels": TAGS}),
        ("parquet", ("tokens", "ner_tags"), by_index(SENTENCES), {"labels": TAGS}),
        ("parquet", ("Tokens", "pos_tags"), SENTENCES, {"labels": TAGS}),
    ],
)
def test_words_and_tags(tmp_path, ending, header, rows, facts):
    for split in ("train", "validation"):
        write(tmp_path / f"{split}.{ending}", header, rows)
    (tmp_path / "labels.json").write_text(json.dumps(facts))
    data = load(tmp_path)
    assert (data.task_type, data.labels) == ("token", tuple(TAGS))
    split = data.splits["train"]
    assert split.texts == tuple(" ".join(words) for words, _ in SENTENCES)
    assert [[TAGS[tag] for tag in tags] for tags in split.gold] == [tags for _, tags in SENTENCES]
    cut = [[text[a:b] for a, b in words] for text, words in zip(split.texts, split.words, strict=True)]
    assert cut == [words for words, _ in SENTENCES]
    assert data.digest.startswith("sha256:")


SCHEMES = {
    "BIOES": ("BIES", "{place}-{kind}", "O"),
    "BILOU": ("BILU", "{place}-{kind}", "O"),
    "BMEWO": ("BMEW", "{place}-{kind}", "O"),
    "suffixes": ("BIIB", "{kind}-{place}", "O"),
    "underscores": ("BIIB", "{place}_{kind}", "O"),
    "small": ("BIIB", "{place}-{kind}", "o"),
    "a name": ("BIES", "{kind}_{place}", "OUT"),
    "another": ("BIIB", "{place}-{kind}", "none"),
}


def tags_in(scheme, tags):
    if scheme not in SCHEMES:  # IOB1, or IO
        pairs = zip(["O", *tags], tags, strict=False)
        return [f"I{tag[1:]}" if tag[0] == "B" and before[2:] != tag[2:] else tag for before, tag in pairs]
    (first, inside, last, alone), form, outside = SCHEMES[scheme]
    written = []
    for tag, after in zip(tags, [*tags[1:], "O"], strict=True):
        begins, goes_on = tag[0] == "B", after[0] == "I"
        place = (first if goes_on else alone) if begins else (inside if goes_on else last)
        written.append(outside if tag == "O" else form.format(place=place, kind=tag[2:]))
    return written


LONG = (["Bank", "of", "New", "England"], ["B-ORG", "I-ORG", "I-ORG", "I-ORG"])
TOUCHING = (["Anna", "Bert", "Schmidt"], ["B-PER", "B-PER", "I-PER"])
NAMED, BEGUN = "tags get BIO's names: ", "I-LOC is B-LOC where it begins an entity"


@pytest.mark.parametrize(
    ("scheme", "sentence", "note"),
    [*((scheme, LONG, NAMED) for scheme in SCHEMES), ("IO", LONG, BEGUN), ("IOB1", TOUCHING, BEGUN)],
)
@pytest.mark.parametrize("indices", [False, True])
def test_tags_of_every_scheme_are_read_as_bio(tmp_path, scheme, sentence, note, indices):
    rows = [*SENTENCES, sentence] * 3
    other = [(words, tags_in(scheme, tags)) for words, tags in rows]
    names = sorted({tag for _, tags in other for tag in tags})
    by_number = [(words, [names.index(tag) for tag in tags]) for words, tags in other]
    for folder, content in (("bio", rows), ("other", by_number if indices else other)):
        (tmp_path / folder).mkdir()
        if indices and folder == "other":
            (tmp_path / folder / "labels.json").write_text(json.dumps({"labels": names}))
        for split in ("train", "test"):
            write(tmp_path / folder / f"{split}.jsonl", ("tokens", "ner_tags"), content)
    as_bio, data = load(tmp_path / "bio"), load(tmp_path / "other")

    def tags_of(dataset):
        return [[dataset.labels[tag] for tag in tags] for tags in dataset.splits["train"].gold]

    assert (set(data.labels), tags_of(data)) == (set(TAGS), tags_of(as_bio))
    assert any(note in each for each in data.notes)
    assert not any("BIO" in each for each in as_bio.notes)
    measured = load_split(str(tmp_path / "other"), ReadOptions(), "token", as_bio.labels, "test").split
    assert measured.gold == load_split(str(tmp_path / "bio"), ReadOptions(), "token", as_bio.labels, "test").split.gold
    earlier = load_split(str(tmp_path / "other"), ReadOptions(), "token", names, "test").split
    assert [[names[tag] for tag in tags] for tags in earlier.gold] == [tags for _, tags in other], "an earlier delta's"


@pytest.mark.parametrize(
    "tags",
    [
        ("NOUN", "VERB", "O"),
        ("B-x", "I-x", "NOUN", "O"),
        ("S-x", "E-x"),
        ("o", "O", "NOUN"),
    ],
)
def test_tags_that_mark_no_entities_stay(tmp_path, tags):
    write(tmp_path / "a.jsonl", ("tokens", "pos_tags"), [([f"word{i}", *tags], [tags[0], *tags]) for i in range(20)])
    assert load(tmp_path / "a.jsonl").labels == tuple(sorted(tags))


@pytest.mark.parametrize("outside", ["o", "OUT"])
def test_another_spelling_of_the_outside_tag_is_asked_about(tmp_path, outside):
    rows = [([f"word{i}", "b", "c"], ["PER", outside, "LOC"]) for i in range(20)]
    write(tmp_path / "a.jsonl", ("tokens", "ner_tags"), rows)
    [note] = [note for note in load(tmp_path / "a.jsonl").notes if "BIO" in note]
    assert note.startswith(f"is {outside!r} the tag of words outside of entities?")


LISTED = [
    [{"text": text, "answer_start": start} for text, start in zip(*answers.values(), strict=True)]
    for _, answers in QUESTIONS
]


@pytest.mark.parametrize(
    ("ending", "header", "answers", "facts"),
    [
        ("csv", ("sentence1", "sentence2", "label"), [a for _, a in QUESTIONS], {"task_type": "extractive_qa"}),
        ("csv", ("question", "context", "answers"), [a for _, a in QUESTIONS], {}),
        ("jsonl", ("question", "context", "answers"), LISTED, {"metric": "squad_f1/em", "labels": None}),
        ("parquet", ("question", "context", "answers"), [a for _, a in QUESTIONS], {}),
        ("parquet", ("question", "context", "answers"), LISTED, {}),
    ],
)
def test_questions_and_answers(tmp_path, ending, header, answers, facts):
    rows = [(question, CONTEXT, cell) for (question, _), cell in zip(QUESTIONS, answers, strict=True)]
    for split in ("train", "validation"):
        write(tmp_path / f"{split}.{ending}", header, rows)
    (tmp_path / "labels.json").write_text(json.dumps(facts))
    data = load(tmp_path)
    assert (data.task_type, data.labels, data.metric) == ("span", ("start", "end"), facts.get("metric"))
    assert data.splits["train"].texts == tuple((question, CONTEXT) for question, _ in QUESTIONS)
    assert data.splits["train"].gold == (ACCEPTED, ((46, "sixth"),))
    labeled = load_split(str(tmp_path), ReadOptions(), "span", ("start", "end"))
    assert (labeled.name, labeled.split.gold) == ("validation", data.splits["validation"].gold)


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
@pytest.mark.parametrize("empty", [{"text": [], "answer_start": []}, [], None])
def test_questions_without_an_answer_are_left_out(tmp_path, empty, ending):
    """As in SQuAD 2."""
    good = [(f"question {i}", f"It was {i}.", {"text": [str(i)], "answer_start": [7]}) for i in range(20)]
    listed = [
        (*texts, [dict(zip(cell, values, strict=True)) for values in zip(*cell.values(), strict=True)])
        for *texts, cell in good
    ]
    rows = [
        *(listed if empty == [] else good),
        ("Who?", "It was 5.", "" if empty is None and ending == "csv" else empty),
    ]
    write(tmp_path / f"a.{ending}", ("question", "context", "answers"), rows)
    with pytest.raises(InvalidData, match=r"(line|row) 2[12]: there is no answer, .* \(--drop-unlabeled leaves"):
        load(tmp_path / f"a.{ending}")
    data = load(tmp_path / f"a.{ending}", drop_unlabeled=True)
    assert sum(map(len, data.splits.values())) == 20
    assert "1 of 21 train rows have no label and are skipped" in data.notes


def test_squads_own_file_has_its_questions_as_rows(tmp_path):
    rows = [(f"question {i}", f"It was {i // 2}.", [{"text": str(i // 2), "answer_start": 7}]) for i in range(40)]
    write(tmp_path / "a.jsonl", ("question", "context", "answers"), rows)
    paragraphs = [
        {
            "context": rows[i][1],
            "qas": [
                {"id": str(n), "question": question, "answers": answers, "is_impossible": False}
                for n, (question, _, answers) in enumerate(rows[i : i + 2], i)
            ],
        }
        for i in range(0, 40, 2)
    ]
    articles = [{"title": "first", "paragraphs": paragraphs[:7]}, {"title": "second", "paragraphs": paragraphs[7:]}]
    (tmp_path / "b.json").write_text(json.dumps({"version": "v2.0", "data": articles}))
    flat, nested = load(tmp_path / "a.jsonl"), load(tmp_path / "b.json")
    assert (nested.task_type, nested.digest) == ("span", flat.digest)


def test_questions_on_one_context_are_held_out_together(tmp_path):
    rows = [(f"question {i}", f"It was {i % 8}.", {"text": [str(i % 8)], "answer_start": [7]}) for i in range(40)]
    write(tmp_path / "a.jsonl", ("question", "context", "answers"), rows)
    splits = load(tmp_path / "a.jsonl", validation_share=0.25).splits
    contexts = {name: {context for _, context in split.texts} for name, split in splits.items()}
    assert len(splits["validation"]) == 10
    assert not contexts["train"] & contexts["validation"]


def aligned(offsets, sequences=None):
    return Alignment(offsets, [None] * len(offsets), sequences or [None] + [0] * (len(offsets) - 2) + [None])


@pytest.mark.parametrize(
    ("answer", "truncated", "tokens"),
    [
        ((0, "one"), False, (4, 4)),
        ((4, "two three"), False, (5, 7)),
        ((6, "o th"), False, (5, 6)),  # tokens are not split
        ((8, "three four"), True, None),  # the end is not there
        ((14, "four"), True, None),
        ((3, " "), False, None),  # no token at all
    ],
)
def test_the_tokens_of_an_answer(answer, truncated, tokens):
    # [CLS] what ? [SEP] one two th ##ree [SEP]
    offsets = [(0, 0), (0, 4), (4, 5), (0, 0), (0, 3), (4, 7), (8, 10), (10, 13), (0, 0)]
    alignment = aligned(offsets, [None, 0, 0, None, 1, 1, 1, 1, None])
    assert answer_tokens(answer, alignment, truncated) == tokens
