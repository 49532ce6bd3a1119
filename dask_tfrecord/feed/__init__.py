"""Feed datasets to training: provide Arrow batches, random access, and loaders for the training frameworks.

Only the module with the name of a training framework imports the framework.
"""
