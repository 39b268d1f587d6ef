"""Schema 1: tasks, versions and aliases, as OneBERT made them before there were revisions."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

# Ordered by bytes on every database.
NAME = sa.String().with_variant(sa.String(collation="C"), "postgresql")


def upgrade() -> None:
    """Creates the three tables."""
    op.create_table(
        "tasks",
        sa.Column("name", NAME, primary_key=True),
        sa.Column("last_version", sa.Integer, nullable=False),
    )
    op.create_table(
        "versions",
        sa.Column("task", NAME, sa.ForeignKey("tasks.name"), primary_key=True),
        sa.Column("version", sa.Integer, primary_key=True),
        sa.Column("digest", NAME, nullable=False),
        sa.Column("size", sa.Integer, nullable=False),
        sa.Column("created_at", sa.DateTime, nullable=False),
        sa.Column("manifest", sa.Text, nullable=False),
        sa.UniqueConstraint("task", "digest"),
    )
    op.create_index("ix_versions_digest", "versions", ["digest"])
    op.create_table(
        "aliases",
        sa.Column("task", NAME, primary_key=True),
        sa.Column("alias", NAME, primary_key=True),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("previous", sa.Integer),
        sa.ForeignKeyConstraint(["task", "version"], ["versions.task", "versions.version"]),
    )
