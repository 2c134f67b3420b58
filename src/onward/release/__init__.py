"""Release: a candidate is validated, given a growing share of traffic, and kept or taken back.

``gates`` (pure statistics) judge ``evidence`` (outcome events in stream order); ``plan`` (pure) says when
a step ends; ``controller`` is the role that walks one ``record`` through its states. Know before changing:
the record in bucket ``rl_releases`` is the only truth; routes, model entries and events are derived from
it and can be repeated.
"""
