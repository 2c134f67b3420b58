"""HTTP for people and monitors. Thin: it calls the packages below and decides nothing."""
