"""The ground floor: the words of the product, its rules, its ports, its use cases and its store."""
