"""Labels that are probably wrong: beside the paper's definition in loops, and as the command lists them."""

import json

import numpy as np
import pytest

from onebert_store.errors import InvalidData, InvalidSettings
from onebert_training.cli import check
from onebert_training.data.examples import Split
from onebert_training.insight.suspects import find_suspects, folds_of, out_of_fold
from trainings import invoke


def of_texts(texts, gold):
    """Rows, and their folds."""
    examples = Split(tuple(texts), gold)
    return examples, folds_of(examples)


def test_as_many_rows_are_suspect_as_the_confident_joint_counts_those_first_that_are_surest_of_another():
    """Northcutt et al. 2021, equations 1 to 3, row by row."""
    rng = np.random.default_rng(0)
    probabilities = rng.dirichlet(np.ones(4) * 0.7, 300)
    gold = np.where(rng.uniform(size=300) < 0.8, probabilities.argmax(axis=1), rng.integers(0, 3, 300))
    gold[gold == 3] = 0  # a label that no row has
    thresholds = {j: np.mean([p[j] for p, g in zip(probabilities, gold, strict=True) if g == j]) for j in range(3)}
    joint = np.zeros((3, 3))
    for p, g in zip(probabilities, gold, strict=True):
        confident = [j for j in range(3) if p[j] >= thresholds[j]]
        if confident:
            joint[g, max(confident, key=lambda j: p[j])] += 1
    joint *= (np.bincount(gold) / joint.sum(axis=1))[:, None]
    wrong = round(joint.sum() - np.trace(joint))
    others = [row for row in range(300) if probabilities[row].argmax() != gold[row]]
    assert 20 < wrong < len(others)
    suspects = find_suspects(probabilities, gold, np.arange(300) % 5)
    ratio = {row: probabilities[row, gold[row]] / probabilities[row].max() for row in others}
    assert [suspect.row for suspect in suspects] == sorted(others, key=ratio.__getitem__)[:wrong]
    for suspect in suspects:
        assert (suspect.label, suspect.suggested) == (gold[suspect.row], probabilities[suspect.row].argmax())
        assert suspect.ratio == pytest.approx(ratio[suspect.row])


def test_no_row_is_answered_by_a_head_that_saw_its_text():
    """More dimensions than rows, and labels that are chance: a head is sure of every row that it was fitted on."""
    rng = np.random.default_rng(1)
    vectors = rng.normal(size=(200, 400)).astype(np.float32)
    vectors[100:] = vectors[:100]
    gold = rng.integers(0, 2, 200)
    gold[100:] = gold[:100]
    texts = [f"text {row % 100}" for row in range(200)]
    probabilities = out_of_fold(["a", "b"], vectors, *of_texts(texts, gold))
    np.testing.assert_allclose(probabilities.sum(axis=1), 1.0)
    np.testing.assert_array_equal(probabilities[:100], probabilities[100:])
    # Of 100 fair coins: four standard deviations around one half.
    assert 0.3 < (probabilities[:100].argmax(axis=1) == gold[:100]).mean() < 0.7
    apart = out_of_fold(["a", "b"], vectors, *of_texts((f"text {row}" for row in range(200)), gold))
    assert (apart.argmax(axis=1) == gold).mean() > 0.8  # most twins are then on the other side


def ask(*arguments):
    return invoke(check, *arguments, "--labels")


def test_the_command_names_suspects_by_file_and_line(tmp_path):
    words = [("good", "praise"), ("bad", "complaint")]
    things = ("parcel", "order", "invoice", "password", "screen", "refund")
    for name, count, wrong in (("train.csv", 80, {4, 31}), ("test.csv", 20, {7})):
        lines = ["text,label"]
        for i in range(count):
            word, label = words[i % 2]
            label = words[1 - i % 2][1] if i in wrong else label
            lines.append(f"the {things[i % 6]} was very very very {word} {word} and late {i},{label}")
        (tmp_path / name).write_text("\n".join(lines) + "\n")
    done = ask(tmp_path, "--json")
    assert done.exit_code == 0, done.output
    suspects = json.loads(done.stdout)["suspects"]
    assert suspects["of"] == 100
    first = {(row["file"], row["line"]): (row["label"], row["suggested"]) for row in suspects["first"][:3]}
    assert first == {
        ("train.csv", 6): ("complaint", "praise"),
        ("train.csv", 33): ("praise", "complaint"),
        ("test.csv", 9): ("praise", "complaint"),
    }
    shown = ask(tmp_path).stdout
    assert f"labels to review: {suspects['rows']} of 100 rows" in shown
    assert 0.9 < suspects["answered"] <= 0.97  # three of 100 are wrong, and may mislead a few others
    share = f"{100 * suspects['answered']:.1f} %"
    assert f"they confirm the label of {share} of all rows" in shown
    assert shown.index("ratio: ") < shown.index("read them from the top")
    assert "train.csv line 33" in shown


def test_rows_that_all_have_one_text_are_refused(tmp_path):
    (tmp_path / "train.csv").write_text("text,label\nthe parcel,a\nthe parcel,b\n")
    (tmp_path / "validation.csv").write_text("text,label\nthe parcel,a\n")
    with pytest.raises(InvalidData, match="have the same text"):
        raise ask(tmp_path).exception


def test_labels_of_other_tasks_are_not_looked_at(tmp_path):
    (tmp_path / "a.csv").write_text("text,label\n" + "".join(f"the parcel {i},{i / 7}\n" for i in range(40)))
    with pytest.raises(InvalidSettings, match="one label for each text"):
        raise ask(tmp_path / "a.csv").exception
