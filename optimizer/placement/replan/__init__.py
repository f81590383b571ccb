"""Re-planning from an existing plan.

It imports ``pipeline`` and all rooms. Begin with ``replan``.
"""
