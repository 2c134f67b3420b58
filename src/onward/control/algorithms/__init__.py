"""The learning algorithms, one per file; the trainer drives each through ``base.Algorithm``."""
