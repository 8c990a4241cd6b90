#!/usr/bin/env bash
# Launches training: the agent server on this machine, and Relax with agent_client.sh as its agent command.
#   MINI_SWE_AGENT_VENV   virtual environment with mini-swe-agent, on node-local storage
#   MODEL_DIR, SAVE_DIR   model to train from, folder for checkpoints
#   R2E_DATA_PATH         folder of the parquet data
#   R2E_SIF_DIR           folder of the SIF images
set -euo pipefail
here=$(dirname "${BASH_SOURCE[0]}")
# shellcheck source=setup/require.sh
source "$here/setup/require.sh"

require "MINI_SWE_AGENT_VENV MODEL_DIR SAVE_DIR R2E_DATA_PATH R2E_SIF_DIR" "apptainer curl jq ray"

echo "${0##*/}: launching Relax is not part of this version; make demo runs the same server and client, with scripted policies in the model's place" >&2
exit 1
