"""From a training request to one committed checkpoint.

Read in this order: ``jobs`` (the table and its legal transitions), ``dataset`` (what is learned
from), ``worker`` (the child that computes), ``checkpoints`` (what counts as a result), ``service``
(the role that ties them together).
"""
