"""Schema 5: counts of uploads per principal, so that checking a quota does not read the whole audit trail."""

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
    """Adds the table and fills it from the audit trail."""
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
    """Drops the counts; the audit trail still has the uploads."""
    op.drop_table("holdings")
