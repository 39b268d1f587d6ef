"""Schema 6: the new name of a renamed task, so that its audit trail can be followed from either name."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"

NAME = sa.String().with_variant(sa.String(collation="C"), "postgresql")


def upgrade() -> None:
    """Adds the column; earlier changes have no value in it."""
    op.add_column("changes", sa.Column("name", NAME))
    op.create_index("ix_changes_name", "changes", ["name", "seq"])


def downgrade() -> None:
    """Drops the new names; the renames stay in the audit trail."""
    op.drop_index("ix_changes_name", "changes")
    op.drop_column("changes", "name")
