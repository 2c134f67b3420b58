"""Faster forms of losses that ``algorithms`` write in torch: equal by test, and used only where they fit."""
