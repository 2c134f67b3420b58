"""The gateway's HTTP side: ``gateway`` is the role and its app, ``calls`` serves one call, ``streaming``
sends an answer while it is sampled, and ``closing`` has the request that closes a session."""
