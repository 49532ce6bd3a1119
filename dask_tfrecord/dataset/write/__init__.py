"""Write a dataset: check the destination, write and commit files, and remove files of failed writes."""
