"""The Model Context Protocol server: the running broker as tools of an assistant, through the Python client.

It imports the client, schemas and the domain, and the official SDK (extra ``mcp``). Begin with ``server``.
"""
