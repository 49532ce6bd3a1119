"""Feed datasets to training: Arrow batches, random access, and loaders for the training frameworks.

Each training framework is imported only by the module with the name of the framework.
"""
