"""The tables of kept samples and of feedback; `task` is an id of the registry's `identities`, not a name."""

import sqlalchemy as sa

from onebert_store.registry.database import NAME, UtcDateTime
from onebert_store.registry.schema import Tables

_METADATA = sa.MetaData()

# One kept answer; `texts` is encrypted, `mac` an HMAC that equal texts share, null in older rows.
SAMPLES = sa.Table(
    "samples",
    _METADATA,
    sa.Column("task", NAME, primary_key=True),
    sa.Column("id", NAME, primary_key=True),
    sa.Column("version", sa.Integer, nullable=False),
    sa.Column("at", UtcDateTime, nullable=False),
    sa.Column("principal", sa.String, nullable=False),
    sa.Column("texts", sa.Text, nullable=False),
    sa.Column("labels", sa.JSON, nullable=False),
    sa.Column("score", sa.Double),
    sa.Column("share", sa.Double, nullable=False),
    sa.Column("mac", NAME, info={"since": 7}),
    sa.Index("ix_samples_id", "id"),
    sa.Index("ix_samples_at", "task", "at", "id"),
    info={"since": 1},
)

# One text's right label with the answers of several versions; `texts` and `explanation` are encrypted.
FEEDBACK = sa.Table(
    "feedback",
    _METADATA,
    sa.Column("task", NAME, primary_key=True),
    sa.Column("identifier", NAME, primary_key=True),
    sa.Column("kind", sa.String, nullable=False),
    sa.Column("right", sa.JSON, nullable=False),
    sa.Column("answers", sa.JSON, nullable=False),
    sa.Column("at", UtcDateTime, nullable=False),
    sa.Column("principal", sa.String, nullable=False),
    sa.Column("answer_id", NAME),
    sa.Column("version", sa.Integer),
    sa.Column("share", sa.Double),
    sa.Column("texts", sa.Text),
    sa.Column("explanation", sa.Text),
    # Right label and answers of the first outcome with this identifier: what comes later may depend on the answers.
    sa.Column("counted", sa.JSON(none_as_null=True), info={"since": 2}),
    # Whether the principal could review; null in older rows.
    sa.Column("reviewer", sa.Boolean, info={"since": 4}),
    # Labels of `right` that the version with the largest share lacked; null: none.
    sa.Column("new_labels", sa.JSON(none_as_null=True), info={"since": 6}),
    sa.Column("mac", NAME, info={"since": 7}),
    sa.Index("ix_feedback_answer", "task", "answer_id"),
    sa.Index("ix_feedback_at", "task", "at", "identifier"),
    sa.Index("ix_feedback_mac", "task", "mac"),
    info={"since": 1},
)

# Tasks with rows that the registry does not know, and the time they were first seen; see `Sweeper`.
UNKNOWN = sa.Table(
    "unknown_samples",
    _METADATA,
    sa.Column("task", NAME, primary_key=True),
    sa.Column("since", UtcDateTime, nullable=False),
    info={"since": 3},
)

# One row: the key of default identifiers, encrypted as texts are. It stays when the keys that encrypt change.
NAMING = sa.Table(
    "samples_naming",
    _METADATA,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("key", sa.Text, nullable=False),
    info={"since": 5},
)

# The tables with rows of tasks; samples before feedback, everywhere: PostgreSQL would end one of two transactions that
# wait for each other.
OF_TASKS = SAMPLES, FEEDBACK, UNKNOWN

TABLES = Tables("samples", _METADATA)
