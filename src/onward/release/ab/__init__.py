"""A/B tests of two registered models: a fixed split, an interval to read at any time, a stop rule."""
