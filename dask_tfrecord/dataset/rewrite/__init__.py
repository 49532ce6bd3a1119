"""Maintain existing datasets: add snapshots, verify, compact and repair files, delete rows, and expire
versions.
"""
