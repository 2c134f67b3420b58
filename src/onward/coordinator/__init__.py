"""The coordinator: decides when there is enough to learn from, and asks for training once."""
