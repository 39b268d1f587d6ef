"""Schema 5: what each principal has uploaded, counted, so that a quota does not read the whole trail in each upload."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"

NAME = sa.String().with_variant(sa.String(collation="C"), "postgresql")
COUNTED = """
    INSERT INTO holdings (task, principal, versions, bytes)
    SELECT versions.task, changes.principal, COUNT(*), SUM(versions.size)
    FROM versions JOIN changes ON changes.task = versions.task AND changes.version = versions.version
    WHERE changes.action = 'upload'
    GROUP BY versions.task, changes.principal
"""


def upgrade() -> None:
    """Adds the table, and counts what the trail says."""
    op.create_table(
        "holdings",
        sa.Column("task", NAME, primary_key=True),
        sa.Column("principal", sa.String, primary_key=True),
        sa.Column("versions", sa.Integer, nullable=False),
        sa.Column("bytes", sa.BigInteger, nullable=False),
    )
    op.create_index("ix_holdings_principal", "holdings", ["principal"])
    op.execute(COUNTED)


def downgrade() -> None:
    """Forgets the counts; the trail has what they were made of."""
    op.drop_table("holdings")
