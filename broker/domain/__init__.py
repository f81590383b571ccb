"""The domain: immutable types and pure rules, without a clock, a network or a database."""
