"""Training data of a job. ``frozen`` makes a job's data from the warehouse, once; ``dataset`` is the file
format and its limits; ``files`` reads a user's own files. ``admission`` decides which trajectories are used,
``corrections`` and ``conversations`` handle user corrections and plain text.
"""
