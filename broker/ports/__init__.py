"""What use cases ask of the world: one file of protocols for each noun.

It imports the domain. Begin with ``unit_of_work``.
"""
