"""The adapters of the sellers: one module or package per seller, and one contract that all of them keep."""
