"""Settings of webhooks."""

import base64
import re
from typing import Annotated

from pydantic import BaseModel, Field, model_validator

# Plain HTTP would show all moves to the network.
ADDRESS = re.compile(r"(https://[A-Za-z0-9.-]+|https?://(127\.0\.0\.1|localhost|\[::1\]))(:\d{1,5})?([/?][!-~]*)?")


class Settings(BaseModel):
    """The receiver of webhooks."""

    # May hold a password.
    #: Address that gets [webhooks](../guide/webhooks.md): `https://…`, on loopback also `http://…`.
    webhook_url: Annotated[str | None, Field(repr=False)] = None
    #: Key that signs webhooks: `whsec_` and 24 to 64 bytes in base64.
    webhook_key: Annotated[str | None, Field(repr=False)] = None

    @model_validator(mode="after")
    def _webhook_is_complete(self) -> "Settings":
        if (self.webhook_url is None) != (self.webhook_key is None):
            raise ValueError("webhooks take ONEBERT_WEBHOOK_URL and ONEBERT_WEBHOOK_KEY together")
        if self.webhook_url is not None and not ADDRESS.fullmatch(self.webhook_url):
            raise ValueError("ONEBERT_WEBHOOK_URL is an address that begins with https://, on loopback with http://")
        if self.webhook_key is not None and not 24 <= len(secret_of(self.webhook_key)) <= 64:
            raise ValueError("ONEBERT_WEBHOOK_KEY is whsec_ and 24 to 64 bytes in base64")
        return self


def secret_of(key: str) -> bytes:
    """The secret in a key of webhooks; empty if the key is not of this form."""
    try:
        return base64.b64decode(key.removeprefix("whsec_"), validate=True) if key.startswith("whsec_") else b""
    except ValueError:
        return b""
