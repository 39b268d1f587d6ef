"""The table of `onebert classify`: the words that an answer is owed to."""

from onebert_server.cli.results import ResultTable
from onebert_server.cli.rows import Row
from onebert_server.client import Explanation, TaskResult, WordEffect


def printed(capsys, asked, *words):
    explanation = Explanation("occlusion", "good", [WordEffect(*word) for word in words])
    result = TaskResult(task="tone", version=1, digest="", label="good", score=0.9, explanation=explanation)
    given = [Row(asked)]
    ResultTable(given, [result], None).print(given, [result])
    return " ".join(capsys.readouterr().out.split())


def test_words_of_a_pair_say_which_text_they_are_from(capsys):
    said = printed(capsys, ("late again", "again"), ("text", 5, 10, 0.25), ("text_pair", 0, 5, -0.5))
    assert said.endswith("again (second text) -0.500, again +0.250")


def test_what_rounds_to_nothing_has_no_minus(capsys):
    assert printed(capsys, "late again", ("text", 0, 4, -1e-6)).endswith("late +0.000")
