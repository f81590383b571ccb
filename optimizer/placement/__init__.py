"""The joint planner, from a request and a market to a plan with its bound.

Each room imports only rooms below it (``pyproject.toml`` names the order). Begin with ``pipeline``.
"""
