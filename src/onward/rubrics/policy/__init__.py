"""The policy that writes rubrics: its prompt and tiny network, warm start, learning, evaluation, and its use."""
