"""Sentences about preferences: in the brief, and as answers of the stakeholder. Each has several wordings.

Each sentence of a brief names the artefact, with eleven words or fewer since the last mention, so briefs of
two families share no run of thirteen words. An answer names no check, argument or weight.
"""

from __future__ import annotations

import random
from collections.abc import Iterable

ASPECTS: dict[str, tuple[str, ...]] = {
    "accuracy": ("correct figures", "exact numbers", "error-free figures"),
    "completeness": ("full coverage", "complete content", "all items"),
    "brevity": ("brevity", "few words", "quick reading"),
    "compliance": ("formal approval", "privacy rules", "due form"),
    "traceability": ("clear sources", "stated evidence", "traceable origins"),
    "actionability": ("next actions", "assigned work", "clear steps"),
}
"""Names of a dimension in a sentence: two words at most, so that two mentions of the artefact stay near."""
BRIEF: dict[int, tuple[str, ...]] = {
    3: (
        "The {noun} stands or falls with {aspect}.",
        "For this {noun}, put {aspect} first.",
        "Judge the {noun} above all by {aspect}.",
        "In this {noun} we insist on {aspect}.",
    ),
    1: (
        "The {noun} gains a little by {aspect}.",
        "For this {noun}, give {aspect} some attention.",
        "Add {aspect} to the {noun} if you can.",
        "In this {noun}, treat {aspect} as minor.",
    ),
    0: (
        "The {noun} does without {aspect}.",
        "For this {noun}, do not aim at {aspect}.",
        "Skip {aspect} in this {noun}.",
        "In this {noun}, give no weight to {aspect}.",
    ),
}
ANSWERS: dict[int, tuple[str, ...]] = {
    3: (
        "That is decisive for me.",
        "It matters more than most things.",
        "I would send the work back without it.",
        "Please put it at the top of the list.",
        "I look at that first.",
    ),
    1: (
        "It is nice to have.",
        "It helps a little.",
        "I see it as a minor plus.",
        "Some of it is enough.",
        "I notice it, with little weight.",
    ),
    0: (
        "I do not care about that.",
        "It makes no difference to me.",
        "You can leave that aside.",
        "That plays no part.",
        "I never look at it.",
    ),
}
STATED = ("The brief has that already.", "Please read the brief again.")
REPEATED = ("You asked that before.", "I answered that already.")
OFF_TOPIC = ("I have no view on that.", "That is not for me to say.")
ALL_STATED = "Nothing else counts for this {noun}."


def brief_sentence(dimension: str, level: int, noun: str, draw: random.Random) -> str:
    """Returns a sentence of the brief about one dimension."""
    return draw.choice(BRIEF[level]).format(noun=noun, aspect=draw.choice(ASPECTS[dimension]))


def brief_text(goal: str, sentences: Iterable[str], noun: str, *, states_all: bool) -> str:
    """Returns a brief: its goal, what it states, and, if that is all, that nothing else counts."""
    end = (ALL_STATED.format(noun=noun),) if states_all else ()
    return " ".join((goal, *sentences, *end))


def answer(family: str, seed: int, topic: str, level: int) -> str:
    """Returns the stakeholder's phrase for a level; the task and the topic decide its wording."""
    return _wording(ANSWERS[level], family, seed, topic)


def refusal(wordings: tuple[str, ...], family: str, seed: int, topic: str) -> str:
    """Returns a phrase that has no information."""
    return _wording(wordings, family, seed, topic)


def _wording(wordings: tuple[str, ...], family: str, seed: int, topic: str) -> str:
    return wordings[int(random.Random(f"wording/{family}/{seed}/{topic}").random() * len(wordings))]
