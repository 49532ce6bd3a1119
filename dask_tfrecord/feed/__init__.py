"""Datasets -> training: Arrow batches, random access, and the loaders of the training frameworks.

The frameworks are imported only by the module that is named after them.
"""
