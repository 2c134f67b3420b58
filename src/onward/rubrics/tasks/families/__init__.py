"""The 24 training families, one module a group: each group lays its inputs out in its own way."""
