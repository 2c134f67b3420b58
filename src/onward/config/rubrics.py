"""Settings of the release of rubric writers."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from onward.config.section import Section


class RubricsSettings(Section):
    release: Literal["auto", "approval", "never"] = "auto"
    """Release of a writer that passes its validation after a job. ``auto``: it is released. ``approval``: it
    waits for ``onward rubrics promote``. ``never``: it is only recorded."""
    rule: Literal["not_worse", "better"] = "not_worse"
    """Rule for the lower end of the paired 95 % interval of skill, against the released writer: at least
    minus ``margin``, or above 0. The first writer must be better than its warm start."""
    margin: float = Field(0.02, ge=0, lt=1)
    """Fall in skill that ``not_worse`` tolerates."""
    min_skill: float = Field(0.0, ge=-1, le=1)
    """Least skill on validation tasks; a constant score has skill 0."""
    max_invalid: float = Field(0.01, ge=0, le=1)
    """Share of validation tasks with a text that is no rubric; above it a writer is refused."""
    max_degenerate: float = Field(0.01, ge=0, le=1)
    """The same for rubrics that give all outputs one score, or that repeat a check."""
