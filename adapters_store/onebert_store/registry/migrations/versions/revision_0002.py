"""Schema 2: since when a blob is without a version, so that it is removed after a time of grace and not at once."""

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
    """Forgets since when blobs are orphans; the blobs stay."""
    op.drop_table("orphans")
