"""The any-model path: a causal language model of transformers, computed by its own modules and by peft.

It is slower than our own forward and has no shared prefixes. Nothing about a network is assumed: padding,
batches and caches are each tried against one row alone when the network is loaded (``probe``).
"""
