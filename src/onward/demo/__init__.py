"""The demonstration: a small fleet of agents, the whole loop around them, sabotage, tables and curves.

``agents`` and ``audit`` run as separate processes, so that their results are independent of the loop:
the agents know only HTTP and the recorder, the audit only ids.
"""
