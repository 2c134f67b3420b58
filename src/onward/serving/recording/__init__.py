"""Recording of the gateway's calls as trajectories, in the background.

``conversations`` finds the conversation of a request, ``capture`` drives the recording, and ``trajectory``
makes the documents. ``write_behind`` queues them; ``recording`` writes them to outbox, journal or quarantine.
``closing`` has the request that closes a session. ``outcome_publisher`` reports session outcomes and votes to
the gates of a release.
"""
