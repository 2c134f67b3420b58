"""The reinforcement-learning core for language policies.

It imports nothing of onward but ``errors`` and knows no bus, job or storage: a researcher can lift it
out. It needs torch, so only child processes and tests import it. The one thing to know: OpenMP threads
that spin while they wait make a step ten times slower as soon as another process wants the same core,
so waiting is made passive here, which works only when this package is imported before torch.
"""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
