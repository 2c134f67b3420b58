"""Training, from a request to one committed checkpoint.

Reading order: ``spec`` (the request and its resolved numbers), ``data`` (the frozen dataset), ``job`` (the
child that computes; its entry point is ``job.worker``), ``checkpoints`` (results and their commit), ``role``
(the job table and the trainer role). ``warm_start`` makes the first policy. The
learning itself (advantages, losses, optimiser) is in ``onward.lm``.
"""
