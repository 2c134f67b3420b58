"""The learning algorithms, one per file (``actor_critic``: the network of PPO and A3C); the trainer drives
each through ``base.Algorithm``."""
