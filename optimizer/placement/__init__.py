"""The joint planner: from a request and a market to a plan with its lower bound."""
