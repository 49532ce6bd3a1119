"""Decide which rows a feed delivers, in which sequence, and read them ahead of the consumer."""
