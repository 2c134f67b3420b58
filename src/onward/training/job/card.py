"""The model card of a run: data, method, results with intervals, limits, resources and cost.

It is Markdown with the front matter of model hubs, in ``README.md`` beside the weights, so the manifest
covers it. Needs no torch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from onward.plotting import difference, wilson
from onward.training.data import dataset
from onward.training.data.report import told
from onward.training.spec.algorithms import ALGORITHMS
from onward.training.spec.request import JobSpec

CARD = "README.md"
_NO_HYPERPARAMETERS = frozenset({
    "job_id", "epoch", "algorithm", "base_model", "model_folder", "start_digest", "ignored", "not_as_asked",
    "environment", "device", "dtype", "threads", "cost_per_hour", "trackers", "path", "save_seconds",
})  # fmt: skip


@dataclass(frozen=True)
class Resources:
    """Time, machine and price of a run."""

    seconds: float
    device: str
    dtype: str
    peak_memory_gb: float = 0.0
    cost_per_hour: float = 0.0

    @property
    def cost_usd(self) -> float | None:
        """Estimated cost; None without a price."""
        return self.seconds / 3600 * self.cost_per_hour if self.cost_per_hour else None


@dataclass(frozen=True)
class Origin:
    """Data of a run: its file, or the episodes that it played itself."""

    sha256: str | None = None
    trajectories: int = 0
    excluded: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of_folder(cls, folder: Path, excluded: Mapping[str, int]) -> Origin:
        """Reads the frozen data of a job folder, if it has any."""
        path = folder / dataset.FILE
        if not path.is_file():
            return cls(excluded=excluded)
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            file.seek(0)
            return cls(digest, sum(1 for _ in file), excluded)


def save_card(
    folder: Path,
    out: Path,
    spec: JobSpec,
    metrics: Mapping[str, Any],
    excluded: Mapping[str, int],
    resources: Resources,
    base_digest: str,
) -> None:
    """Writes the card of the run in ``folder`` to its checkpoint ``out``."""
    text = write_card(spec, metrics, Origin.of_folder(folder, excluded), resources, base_digest)
    (out / CARD).write_text(text, encoding="utf-8")


def write_card(
    spec: JobSpec, metrics: Mapping[str, Any], origin: Origin, resources: Resources, base_digest: str
) -> str:
    """Returns the card. ``metrics`` are those of the policy that is handed out."""
    sections = [
        _front(spec),
        f"# {_one_line(spec.base_model)}, trained with {spec.algorithm}",
        f"A LoRA adapter made by Onward (job `{spec.job_id}`, attempt {spec.epoch}).",
        "## Data\n\n" + _bullets(_data(spec, metrics, origin)),
        "## Method\n\n" + _bullets(_method(spec, base_digest)),
        "### Hyperparameters\n\n" + _table(_hyperparameters(spec)),
        "## Results\n\n" + _results(metrics),
        "## Limits\n\n" + _bullets(_limits(spec, metrics)),
        "## Resources\n\n" + _bullets(_resources(resources)),
    ]
    return "\n\n".join(sections) + "\n"


def _front(spec: JobSpec) -> str:
    name = _one_line(spec.base_model).replace('"', "'")
    return f'---\nlibrary_name: peft\nbase_model: "{name}"\ntags:\n- onward\n- {spec.algorithm}\n---'


def _data(spec: JobSpec, metrics: Mapping[str, Any], origin: Origin) -> list[str]:
    found = []
    if spec.plays and spec.environment is not None:
        played = f"{metrics.get('episodes', 0):,} episodes that the policy played itself"
        found.append(f"{played} in the environment `{_one_line(spec.environment.place)}`")
        if metrics.get("panel_hash"):
            found.append(f"held-out panel `{metrics['panel_hash']}`")
    if origin.sha256 is not None:
        found.append(f"{origin.trajectories:,} frozen records, SHA-256 `{origin.sha256}`")
        found.append("secrets and personal data were redacted before the records were stored")
    start = spec.start_digest or "the base model"
    found.append(f"work of, and training from, policy `{start}`")
    if spec.min_reward is not None:
        found.append(f"smallest reward that was asked for: {spec.min_reward:g}")
    if left := told(dict(origin.excluded)):
        found.append(f"left out: {left}")
    return found


def _method(spec: JobSpec, base_digest: str) -> list[str]:
    trained = f"LoRA of rank {spec.lora_rank}, alpha {spec.lora_alpha:g}"
    return [f"{spec.algorithm}: {ALGORITHMS[spec.algorithm].about}", f"base model `{base_digest}`", trained]


def _hyperparameters(spec: JobSpec) -> list[tuple[str, str]]:
    given = spec.model_dump(mode="json", exclude_none=True, exclude=set(_NO_HYPERPARAMETERS))
    return [(name, _one_line(str(value))) for name, value in sorted(given.items()) if value != []]


def _results(metrics: Mapping[str, Any]) -> str:
    rows: list[tuple[str, str]] = []
    held_out = metrics.get("held_out") or {}
    counts = []
    for when in ("before", "after"):
        figures = held_out.get(when) or {}
        scored = int(figures.get("episodes", 0)) - int(figures.get("unscored", 0))
        if figures.get("success") is None or scored <= 0:
            continue
        low, high = wilson(figures["success"] * scored, scored)
        rows.append((f"held-out success {when}", f"{figures['success']:.3f} ({low:.3f} to {high:.3f})"))
        rows.append((f"held-out episodes {when}", f"{scored:,}"))
        counts.append((figures["success"], scored))
    if len(counts) == 2 and counts[0][1] == counts[1][1]:
        (before, tries), (after, _) = counts
        low, high = difference(before, after, tries)
        rows.append(("change of held-out success", f"{after - before:+.3f} ({low:+.3f} to {high:+.3f})"))
    rows += [
        (name.replace("_", " "), f"{value:.6g}")
        for name, value in sorted(metrics.items())
        if isinstance(value, int | float) and not isinstance(value, bool)
    ]
    note = "Intervals are 95 % (Wilson for a rate, Newcombe for a change)." if counts else (
        "Nothing was held out, so no figure here says how good the policy is on other work."
    )  # fmt: skip
    return f"{_table(rows, 'figure', 'value')}\n\n{note}"


def _limits(spec: JobSpec, metrics: Mapping[str, Any]) -> list[str]:
    found = [
        "trained for the tasks of its data alone; other tasks were not tried",
        "safety was not measured here: the release validates it before any traffic",
    ]
    chosen = metrics.get("handed_out")
    if chosen and chosen.get("evaluations", 0) > 1:
        found.append(
            f"chosen as the best of {chosen['evaluations']} evaluations, so its held-out figure is above "
            f"what it would be on other tasks"
        )
    if metrics.get("skipped_steps"):
        found.append(f"{metrics['skipped_steps']} steps were not finite and were not taken")
    return [*found, *map(_one_line, spec.not_as_asked)]


def _resources(resources: Resources) -> list[str]:
    cost = resources.cost_usd
    price = f"{resources.cost_per_hour:g} USD an hour"
    estimate = "cost unknown: `training.cost_per_hour` is not set"
    return [
        f"{resources.seconds:,.0f} s on {resources.device} in {resources.dtype}",
        f"at most {resources.peak_memory_gb:.2f} GB of memory",
        estimate if cost is None else f"about {cost:.2f} USD, at {price}",
    ]


def _bullets(lines: list[str]) -> str:
    return "\n".join(f"- {line[:1].upper()}{line[1:].rstrip('.')}." for line in lines)


def _table(rows: list[tuple[str, str]], left: str = "name", right: str = "value") -> str:
    lines = [f"| {left} | {right} |", "|---|---|"]
    return "\n".join([*lines, *(f"| {name} | {value} |" for name, value in rows)])


def _one_line(text: str) -> str:
    """Returns text from a request so that it can change nothing of the card around it."""
    return " ".join(text.split()).replace("|", "/").replace("<", "(").replace("`", "'")[:300]
