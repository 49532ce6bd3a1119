"""Check the keywords of the public functions, and translate them to the requests of reads and writes."""
