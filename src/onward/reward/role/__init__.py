"""The rewarder role. ``rewarder`` runs it and makes first rewards, ``settling`` waits for the collector,
``storing`` and ``publishing`` write rewards. ``feedback``, ``rescoring`` and ``superseding`` lead to further
ones. ``state``, ``record`` and ``predecessor`` serve restarts; ``gauges`` and ``unscored`` are metrics and
the alert."""
