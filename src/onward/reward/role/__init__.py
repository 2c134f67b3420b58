"""The rewarder role. A message goes from ``rewarder`` (waits, scores) to ``publishing`` (publishes, stores).
``progress`` tracks how far the collector and the rewarder are. ``feedback`` and ``rescoring`` lead to
further rewards. ``analysis`` requests reports on code, ``monitoring`` holds the metrics and the alert."""
