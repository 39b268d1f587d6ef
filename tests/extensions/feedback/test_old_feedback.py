"""Feedback and kept answers that revision 82b92e21 wrote (`tests/unit/server/test_old_store.py`) stay readable."""

import tarfile
from pathlib import Path

from onebert_server.extensions.feedback.service import FeedbackService
from runtimes import get, opened
from stores import feedback_of

ARCHIVE = Path(__file__).parents[2] / "old_store.tar.xz"
KEY = "b25lYmVydC1vbmViZXJ0LW9uZWJlcnQtb25lYmVydCE="


def test_feedback_and_kept_answers_are_readable(tmp_path):
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    with opened(tmp_path / "data", base=(str(tmp_path / "base"),), samples_key=[KEY]) as runtime:
        [verdict] = get(runtime, "/v1/tasks/tone/aliases/live/verdicts").json()["verdicts"]
        assert (verdict["version"], verdict["wins"], verdict["losses"]) == (2, 12, 0)
        store = runtime.parts[FeedbackService].store
        [review] = [row for row in feedback_of(store, "tone") if row.answer_id]
        assert (review.kind, review.right, review.answers.keys()) == ("review", "label 1", {1, 2})
        # The store keeps its texts for 3,650 days, until 2036.
        assert review.texts is not None
        assert review.explanation == "sarcasm"
        assert store.count("tone") > 0
