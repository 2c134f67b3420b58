"""Rubrics: tasks with a known truth, a language of rubrics, their evaluation, and a policy that writes them."""
