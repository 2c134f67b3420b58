"""The coordinator decides when there is enough data to train on, and requests each training job once."""
