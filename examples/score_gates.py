"""Watch the release gates on a made-up stream of sessions: E-values, and where they would take a model back.

    python examples/score_gates.py                          # a candidate that is as good
    python examples/score_gates.py --success 0.4 --errors 0.05
    python examples/score_gates.py --share 0.25 --sessions 4000
    python examples/score_gates.py --success 0.55 --releases 200    # how often a whole release is taken back

Current succeeds in 75 % of its sessions and fails technically in 1 %. A session's raw total is that of the
default weights: no code, no vote, usual effort. Needs no service.
"""

import argparse
import random

from onward.config import ReleaseSettings
from onward.release.evidence.gates import Gates
from onward.release.evidence.simulation import RAW_FAILED, RAW_SUCCEEDED
from onward.release.plan import MOST_SESSIONS

CURRENT = {"success": 0.75, "errors": 0.01}


def observe(gates: Gates, draw: random.Random, share: float, worse: dict[str, float]) -> bool:
    """Draws one session and tells the gates. True: it was the candidate's."""
    candidate = draw.random() < share
    rates = worse if candidate else CURRENT
    failed = draw.random() < rates["errors"]
    gates.observe_error(candidate, failed, share)
    success = not failed and draw.random() < rates["success"]
    gates.observe_reward(candidate, float(success), RAW_SUCCEEDED if success else RAW_FAILED)
    return candidate


def taken_back(settings: ReleaseSettings, worse: dict[str, float], seed: int) -> bool:
    """Whether a release is taken back before its bake, with no more sessions than its steps ask for."""
    gates = Gates(ceiling=settings.error_ceiling, margin=settings.reward_margin)
    draw = random.Random(seed)
    for share, sessions in zip(settings.steps[:-1], MOST_SESSIONS, strict=True):
        seen = 0
        while seen < sessions:
            seen += observe(gates, draw, share, worse)
            if gates.crossed(settings.alpha):
                return True
    return False


def rate(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text} is no rate: give a number from 0 to 1")
    return value


def at_least_one(text: str) -> int:
    if not text.isdigit() or text == "0":
        raise argparse.ArgumentTypeError(f"{text} is no number of releases: give 1 or more")
    return int(text)


def main() -> None:
    parser = argparse.ArgumentParser(description="Run the gates on simulated sessions.")
    parser.add_argument("--success", type=rate, default=CURRENT["success"], help="candidate's success rate")
    parser.add_argument("--errors", type=rate, default=CURRENT["errors"], help="candidate's error rate")
    parser.add_argument("--share", type=rate, default=0.1, help="candidate's share of sessions")
    parser.add_argument("--sessions", type=int, default=2000)
    parser.add_argument("--releases", type=at_least_one, help="play so many whole releases instead")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    settings = ReleaseSettings.model_validate({})
    worse = {"success": options.success, "errors": options.errors}
    if options.releases:
        found = sum(taken_back(settings, worse, options.seed + number) for number in range(options.releases))
        print(f"{found} of {options.releases} releases were taken back before the bake")
        return
    gates = Gates(ceiling=settings.error_ceiling, margin=settings.reward_margin)
    draw = random.Random(options.seed)
    print(f"{'sessions':>8} {'candidate':>9} {'E error':>10} {'E reward':>10} {'E all':>10}   limit 1/alpha")
    candidates = 0
    for number in range(1, options.sessions + 1):
        candidates += observe(gates, draw, options.share, worse)
        crossed = gates.crossed(settings.alpha)
        if crossed or number % max(1, options.sessions // 10) == 0:
            e = gates.e_values()
            print(
                f"{number:>8} {candidates:>9} {e['error']:>10.3g} {e['reward']:>10.3g} {e['all']:>10.3g}"
                f"   {1 / settings.alpha:.1f}"
            )
        if crossed:
            print(f"TAKEN BACK after {candidates} candidate sessions; leading gate: {gates.leading()}")
            return
    print("not taken back")


if __name__ == "__main__":
    main()
