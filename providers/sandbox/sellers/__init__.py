"""The sellers of the sandbox market, each in the protocol that its own documents describe.

They import the modules of ``providers.sandbox`` and no adapter. Begin with ``hotaisle``, which is one module.
"""
