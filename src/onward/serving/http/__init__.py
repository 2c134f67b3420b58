"""The gateway's HTTP side: ``gateway`` is the role and its app, ``calls`` serves one call, and ``streaming``
sends an answer while it is sampled."""
