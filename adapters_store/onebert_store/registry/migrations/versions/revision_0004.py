"""Schema 4: keys, and the key that a change made or revoked."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Adds the table of keys, the column in changes, and indexes on principal and task."""
    op.create_table(
        "keys",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("name", sa.String, nullable=False),
        sa.Column("digest", sa.String, nullable=False, unique=True),
        sa.Column("scopes", sa.String, nullable=False),
        sa.Column("tasks", sa.Text, nullable=False),
        sa.Column("default_task", sa.String),
        sa.Column("most_tasks", sa.BigInteger),
        sa.Column("most_bytes", sa.BigInteger),
        sa.Column("most_requests", sa.Double),
        sa.Column("most_tokens", sa.Double),
        sa.Column("created_at", sa.DateTime, nullable=False),
        sa.Column("expires_at", sa.DateTime),
        sa.Column("revoked_at", sa.DateTime),
    )
    op.add_column("changes", sa.Column("key", sa.String))
    op.create_index("ix_changes_principal", "changes", ["principal", "seq"])
    op.create_index("ix_changes_task", "changes", ["task", "seq"])


def downgrade() -> None:
    """Drops the keys; the changes stay, without their key."""
    op.drop_index("ix_changes_task", "changes")
    op.drop_index("ix_changes_principal", "changes")
    op.drop_column("changes", "key")
    op.drop_table("keys")
