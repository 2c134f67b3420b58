"""The policy that writes rubrics: prompt and tiny network, warm start, learning, evaluation, and use."""
