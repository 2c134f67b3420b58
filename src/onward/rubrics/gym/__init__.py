"""Workflow gym: workflows with tasks, people and real files, which run without a language model."""
