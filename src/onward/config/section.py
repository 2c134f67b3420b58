"""Base of every section of the settings."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def split_at_commas(value: Any) -> Any:
    """Accepts text with commas, the form used in the environment, in place of a list."""
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value
