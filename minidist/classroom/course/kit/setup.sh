#!/usr/bin/env bash
# Gradescope runs this once, as root, when it builds the autograder's image: grading needs Python 3.11 or later and NumPy.
set -euo pipefail
source_folder=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
environment=$(dirname "$source_folder")/environment

make_environment() {  # with the first Python that is new enough and has its venv module
    for python in python3.14 python3.13 python3.12 python3.11 python3; do
        "$python" -c 'import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || continue
        "$python" -m venv --clear "$environment" && return
    done
    return 1
}

if ! make_environment; then
    export DEBIAN_FRONTEND=noninteractive
    apt-get update
    for version in 3.12 3.11; do  # what Ubuntu 24.04 has, and 22.04
        apt-get install -y --no-install-recommends "python$version" "python$version-venv" && break
    done
    make_environment || { echo "no Python 3.11 or later here: choose Ubuntu 22.04 or later" >&2; exit 1; }
fi
"$environment/bin/pip" install --disable-pip-version-check "$source_folder" pytest
chmod -R go= "$source_folder"  # hidden tests and the chapters' code are nobody's but root's
