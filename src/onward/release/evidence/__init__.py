"""Evidence of a release: outcome events, and the statistics that judge them.

``outcome_source`` reads the stream, ``evidence`` collects its events, and ``gates`` runs the sequential
tests. ``rates`` and ``gauges`` give the counts for people and for ``/metrics``.
"""
