"""The reinforcement-learning core for language policies.

It imports nothing of onward but ``errors``, ``extras`` and ``files`` and knows no bus, job or storage, so a
researcher can lift it out. It needs torch, so only child processes and tests import it.

Reading order: ``tokens`` (rows of sampled tokens), ``trajectories``, ``algorithms`` (one per file; ``learn``
drives them), ``advantages``, ``losses``, ``learner`` and ``stepper`` (the optimiser), ``sampler``
(generation), ``policy`` (base model with adapters). Preferences are in ``preference``, imitation in ``sft``.

Invariants: this package is imported before torch. It sets OpenMP's waiting to passive, which has no effect
later. Threads that spin while they wait make a step ten times slower as soon as another process wants the
same core.
"""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
