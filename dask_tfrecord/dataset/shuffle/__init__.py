"""Move rows between the partitions of a write, through sorted temporary files at the destination."""
