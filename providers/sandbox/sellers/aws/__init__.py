"""AWS in the sandbox market. Begin with ``ec2``, which routes the actions of one endpoint."""
