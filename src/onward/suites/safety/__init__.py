"""Safety suites: refusals, harmless look-alikes, hostile answers, bias between groups, jailbreaks.

``factories`` makes them by name, ``judging.compare`` decides whether a candidate is worse than current, and
``report`` writes the failing transcripts. A program judges: passing is no proof of safety.
"""
