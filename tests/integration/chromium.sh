#!/usr/bin/env bash
# Installs Debian's Chromium for the tests of the dashboard where that is possible, and says what it did.
# Where it is not possible the tests are skipped, but in CI (with CI set) they fail.
set -euo pipefail

if command -v chromium chromium-browser google-chrome >/dev/null; then
  exit 0
fi
if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
  echo "Chromium is missing and cannot be installed without root and apt-get; the dashboard's tests in a browser are skipped"
  exit 0
fi
echo "installing Chromium for the dashboard's tests"
export DEBIAN_FRONTEND=noninteractive
if ! { apt-get update -qq && apt-get install -qq -y --no-install-recommends chromium >/dev/null; }; then
  echo "Chromium could not be installed; the dashboard's tests in a browser are skipped"
fi
