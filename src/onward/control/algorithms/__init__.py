"""The learning algorithms, one per file; ``base.Algorithm`` is what the trainer drives."""
