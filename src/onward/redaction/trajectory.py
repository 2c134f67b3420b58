"""Redaction of a whole trajectory: its texts, and the token ids that decode to redacted text.

The first turn whose prompt or completion may contain redacted text loses the ids and log-probs of its
sampling record, and so does every later turn. A later prompt repeats or extends earlier text, and where this
is unknown it is assumed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from onward.errors import RedactionError
from onward.redaction.contract_words import ENUM_VALUES, FIELD_NAMES, NUMBER_FIELDS
from onward.redaction.document import Fixed, Path
from onward.redaction.engine import Allows, Redacted, redact
from onward.redaction.known import NOTHING_KNOWN, Known
from onward.redaction.rules.personal_optional import Finder

TOKEN_FIELDS = ("prompt_ids", "token_ids", "logprobs")
_ID_FIELDS = frozenset(("session_id", "generation_id", "continues", "release_id"))
_UNCHANGEABLE = frozenset(("trajectory_id", "start_timestamp", "end_timestamp"))
_OUTSIDE_PROMPTS = frozenset((("session_id",), ("agent_id",)))
_FIXED = Fixed(FIELD_NAMES, NUMBER_FIELDS)


def redact_trajectory(
    document: dict[str, Any],
    *,
    known: Known = NOTHING_KNOWN,
    also: Sequence[Finder] = (),
    allows: Allows | None = None,
) -> Redacted:
    """Returns ``document`` without secrets; token ids of affected turns are removed too (``tokens_void``).

    A result is not yet in the tokens of its own turn, so redaction in a result voids from the next turn on.
    Redaction in task text, metadata or anything outside of the turns voids from the first turn. An id with a
    secret becomes ``redacted-…``, the same for the same value. Raises RedactionError.
    """
    try:
        return _redact_trajectory(document, known, also, allows)
    except RedactionError:
        raise
    except Exception as error:
        kind = type(error).__name__
    raise RedactionError(f"The redactor failed ({kind}); the trajectory is held back.")


def _redact_trajectory(
    document: dict[str, Any], known: Known, also: Sequence[Finder], allows: Allows | None
) -> Redacted:
    redacted = redact(document, known=known, also=also, fixed=_FIXED, fixed_values=ENUM_VALUES, allows=allows)
    if not redacted.changed:
        return redacted
    clean = redacted.document
    _mend_ids(clean, redacted.touched)
    turns = clean.get("turns")
    if isinstance(turns, list):
        first = _first_affected(redacted.touched, len(turns))
        for i in sorted(_void_closure(turns, first)):
            void_tokens(turns[i])
    for name, part in clean.items():
        if name != "turns":
            void_tokens(part)
    return redacted


def void_tokens(node: Any) -> None:
    """Empties and marks every sampling record at or below ``node``; repeated calls change nothing."""
    pending = [node]
    while pending:
        here = pending.pop()
        if isinstance(here, list):
            pending += [item for item in here if isinstance(item, (dict, list))]
        elif isinstance(here, dict):
            if any(isinstance(here.get(name), list) for name in TOKEN_FIELDS):
                here.update({name: [] for name in TOKEN_FIELDS}, tokens_void=True)
                here.pop("signature", None)
            pending += [item for item in here.values() if isinstance(item, (dict, list))]


def _first_affected(touched: Iterable[Path], turns: int) -> int:
    """Index of the first turn whose tokens may contain redacted text; ``turns`` if there is none."""
    first = turns
    for path in touched:
        if len(path) >= 2 and path[0] == "turns" and isinstance(path[1], int):
            within_result = len(path) >= 3 and path[2] == "result"
            first = min(first, path[1] + within_result)
        elif path not in _OUTSIDE_PROMPTS:
            return 0
    return first


def _void_closure(turns: list[Any], first: int) -> set[int]:
    """All turns from ``first`` on, and each earlier turn whose record continues one of them."""
    void = set(range(first, len(turns)))
    records = [_sampling(turn) for turn in turns]
    dead = {records[i].get("generation_id") for i in void} - {None}
    grown = True
    while grown:
        grown = False
        for i in range(first):
            if i not in void and records[i].get("continues") in dead:
                void.add(i)
                dead.add(records[i].get("generation_id"))
                grown = True
    return void


def _sampling(turn: Any) -> dict[str, Any]:
    action = turn.get("action") if isinstance(turn, dict) else None
    sampling = action.get("sampling") if isinstance(action, dict) else None
    return sampling if isinstance(sampling, dict) else {}


def _mend_ids(clean: dict[str, Any], touched: Iterable[Path]) -> None:
    """Replaces placeholders in ids by valid ids that reveal nothing of the secret."""
    for path in touched:
        if (len(path) == 1 and path[0] in _UNCHANGEABLE) or _is_turn_time(path):
            raise RedactionError("An id or time of the trajectory holds a secret; give it a plain one.")
        if _is_id(path):
            holder: Any = clean
            for step in path[:-1]:
                holder = holder[step]
            kind, _, number = holder[path[-1]].strip("<>").partition(":")
            label = f"{kind}-{number}" if number.isdigit() else "text"
            holder[path[-1]] = f"redacted-{label}-{clean.get('trajectory_id')}"[:128]


def _is_id(path: Path) -> bool:
    in_record = path[-1] in _ID_FIELDS and path[-2:-1] in (("sampling",), ("release",))
    return in_record or path == ("session_id",)


def _is_turn_time(path: Path) -> bool:
    return len(path) == 3 and path[0] == "turns" and path[2] == "timestamp"
