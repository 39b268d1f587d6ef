"""Schema 6: what a renamed task is called since, so that its trail can be followed from either name."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"

NAME = sa.String().with_variant(sa.String(collation="C"), "postgresql")


def upgrade() -> None:
    """Adds the column, which no change before has anything for."""
    op.add_column("changes", sa.Column("name", NAME))
    op.create_index("ix_changes_name", "changes", ["name", "seq"])


def downgrade() -> None:
    """Forgets the new names; that tasks were renamed stays in the trail."""
    op.drop_index("ix_changes_name", "changes")
    op.drop_column("changes", "name")
