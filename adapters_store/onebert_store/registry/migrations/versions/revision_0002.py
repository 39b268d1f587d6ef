"""Schema 2: the time since when a blob is an orphan, so that sweeps can wait for a grace period."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

NAME = sa.String().with_variant(sa.String(collation="C"), "postgresql")


def upgrade() -> None:
    """Adds the table of orphans."""
    op.create_table(
        "orphans",
        sa.Column("digest", NAME, primary_key=True),
        sa.Column("since", sa.DateTime, nullable=False),
    )


def downgrade() -> None:
    """Drops the table; the blobs stay."""
    op.drop_table("orphans")
