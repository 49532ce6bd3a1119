#!/bin/sh
# Install the package with all that the tests need into .venv, and run the tests.
set -eu
cd "$(dirname "$0")/.."
python3 -m venv .venv
.venv/bin/pip install -e ".[test]"
.venv/bin/pytest -n auto --dist worksteal "$@"
