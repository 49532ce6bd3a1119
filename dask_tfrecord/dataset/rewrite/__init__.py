"""Maintain existing datasets: index, verify, compact and repair files, delete rows, and expire versions."""
