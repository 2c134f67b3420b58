"""Release: validates a candidate, gives it a growing share of traffic, and then promotes it or rolls it back.

``evidence.gates`` (pure statistics) judges ``evidence.evidence`` (outcome events in stream order). ``plan``
(pure) decides when a step ends. ``releaser`` is the role; it moves one ``record`` through its states by the
functions in ``moves`` (begin_validation, reject, start_traffic, hold, promote, abort),
``rollback`` and ``restore``. ``effects`` carries out what a record implies. ``validation`` compares a
candidate with the current model before it gets traffic.

Invariants: the record in bucket ``rl_releases`` is the only truth. Routes, model entries and events are
derived from it and can be repeated.
"""
