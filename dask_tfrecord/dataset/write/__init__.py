"""Write a dataset: inspect the destination, write the files, commit them, remove what failed writes left."""
