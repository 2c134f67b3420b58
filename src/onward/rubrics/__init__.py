"""Rubrics: tasks with a known truth, the language and evaluation of rubrics, a policy that writes them."""
