"""Settings of kept answers."""

from typing import Annotated, Any

from pydantic import BaseModel, Field, field_validator
from pydantic_settings import NoDecode


class Settings(BaseModel):
    """How texts are kept."""

    # Keys, never shown.
    #: Keys that encrypt kept texts ([feedback](../guide/feedback.md)), with commas between: the first one encrypts, all
    #: decrypt. A key is 32 bytes in URL-safe base64, and takes the extra `samples`. Without a key no text is
    #: kept.
    samples_key: Annotated[tuple[str, ...], NoDecode, Field(repr=False)] = ()
    #: Name of a [plug-in](plugins.md) that removes personal data from texts before they are kept.
    redactor: str | None = None

    @field_validator("samples_key", mode="before")
    @classmethod
    def _keys(cls, value: Any) -> Any:
        return tuple(key.strip() for key in value.split(",") if key.strip()) if isinstance(value, str) else value
