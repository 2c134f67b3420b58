"""Trained policies without their trainer: ``policy`` acts in numpy, ``policy_file`` reads and writes the
files, and ``export`` writes ONNX."""
