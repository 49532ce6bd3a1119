#!/bin/sh
# Install the package with all that the quickstart needs into .venv, and run the quickstart.
set -eu
cd "$(dirname "$0")/.."
python3 -m venv .venv
.venv/bin/pip install -e ".[quickstart]"
.venv/bin/python examples/quickstart.py "$@"
