#!/usr/bin/env bash
# One-time setup: the parquet data, the wheels, and one SIF per Docker image that the data names.
#   MINI_SWE_AGENT_VENV   virtual environment with mini-swe-agent; its bin folder is searched for commands
#   R2E_DATA_PATH         folder to put the parquet data in
#   R2E_SIF_DIR           folder to put the SIF images in
set -euo pipefail
here=$(dirname "${BASH_SOURCE[0]}")
# shellcheck source=setup/require.sh
source "$here/setup/require.sh"

PATH=${MINI_SWE_AGENT_VENV:+$MINI_SWE_AGENT_VENV/bin:}$PATH
require "MINI_SWE_AGENT_VENV R2E_DATA_PATH R2E_SIF_DIR" "hf duckdb jq apptainer"

echo "${0##*/}: downloading R2E-Gym data and converting its images is not part of this version; make samples builds tasks and images of the same form from packages" >&2
exit 1
