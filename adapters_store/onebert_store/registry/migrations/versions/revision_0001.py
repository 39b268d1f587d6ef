"""Schema 1: tasks, versions and aliases, as OneBERT made them before there were revisions."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Makes the three tables."""
    op.create_table(
        "tasks",
        sa.Column("name", sa.String, primary_key=True),
        sa.Column("last_version", sa.Integer, nullable=False),
    )
    op.create_table(
        "versions",
        sa.Column("task", sa.String, sa.ForeignKey("tasks.name"), primary_key=True),
        sa.Column("version", sa.Integer, primary_key=True),
        sa.Column("digest", sa.String, nullable=False),
        sa.Column("size", sa.Integer, nullable=False),
        sa.Column("created_at", sa.DateTime, nullable=False),
        sa.Column("manifest", sa.Text, nullable=False),
        sa.UniqueConstraint("task", "digest"),
    )
    op.create_index("ix_versions_digest", "versions", ["digest"])
    op.create_table(
        "aliases",
        sa.Column("task", sa.String, primary_key=True),
        sa.Column("alias", sa.String, primary_key=True),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("previous", sa.Integer),
        sa.ForeignKeyConstraint(["task", "version"], ["versions.task", "versions.version"]),
    )
