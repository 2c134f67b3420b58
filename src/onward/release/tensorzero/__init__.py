"""The adapter for TensorZero: it follows the desired routes beside the built-in gateways.

``configuration`` writes the routes as TensorZero's configuration and reads them back. ``targets`` applies it:
an embedded gateway, a file with a reload command, or TensorZero's own endpoint. ``following`` drives them.
"""
