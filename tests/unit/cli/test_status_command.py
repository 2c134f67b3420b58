"""``onward status``: sentences about counts. (With a service: tests/integration/test_docs_service.py.)"""

import io

from rich.console import Console

from onward.cli.status import _show


def shown(held: int, count: int, **more: object) -> str:
    names = ("trajectories", "rewarded", "unscored", "outcomes", "deployments", "status_events")
    found = {
        "streams": [],
        "counts": dict.fromkeys(names, count),
        "held": held,
        "opted_out": 0,
        "next_job": {"rewarded": 0, "threshold": 5},
        "serving": None,
        "jobs": [],
        "releases": [],
        "learning_paused": False,
        "pinned": None,
        "not_active": {},
        "unscored": {},
        "unscored_share": {"n": 0, "unscored": 0},
        "rescore": None,
        **more,
    }
    text = io.StringIO()
    _show(found, {}, Console(file=text, width=300))
    return text.getvalue()


def test_one_is_singular_and_the_quarantine_claims_no_cause() -> None:
    output = shown(held=2, count=1)
    assert (
        "1 trajectory stored, 1 rewarded, 1 unscored; 1 session outcome in releases, 1 deployment, "
        "1 training status event." in output
    )
    assert "2 held in quarantine ('onward quarantine list' says why)." in output


def test_none_and_several_are_plural_and_an_empty_quarantine_is_not_named() -> None:
    output = shown(held=0, count=0)
    assert "0 trajectories stored" in output and "0 deployments, 0 training status events." in output
    assert "quarantine" not in output


def test_silence_is_told_by_cause_and_a_run_of_rescore_by_how_far_it_is() -> None:
    run = {"run_id": "r1", "seen": 50, "total": 120, "finished": False}
    causes = {"no_outcome": 30, "contract": 2}
    output = shown(0, 0, unscored=causes, unscored_share={"n": 200, "unscored": 25}, rescore=run)
    assert "Unscored: contract 2, no_outcome 30; 25 of the last 200." in output
    assert "Scoring again: 50 of 120 (run r1)." in output
