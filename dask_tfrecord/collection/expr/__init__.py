"""Define the Dask expressions of reads and writes. Only this package imports private names of Dask.

The private names were checked with Dask 2025.5.1 to 2026.8. The tasks call the packages `dataset` and
`frames` to read, convert and write the rows.
"""
