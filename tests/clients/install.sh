#!/usr/bin/env bash
# Fills a folder with the agents that the client tests run: Claude Code, Codex and opencode, from npm.
#
#   install.sh DIR
#
# Takes about a minute and 1 GB; needs node and npm. A folder that is already complete is left alone. An interrupted call
# leaves no stamp, so the next one finishes the work; two calls at once wait for each other.
set -euo pipefail

# Pinned: what these versions send is what the tests expect.
packages=("@anthropic-ai/claude-code@2.1.197" "@openai/codex@0.171.0" "opencode-ai@1.18.33")
programs=(claude codex opencode)

say() { printf 'clients: %s\n' "$*"; }

fail() {
  printf 'install.sh: %s\n' "$1" >&2
  exit "${2:-1}"
}

is_complete() {
  local program
  for program in "${programs[@]}"; do
    [ -x "$dir/node_modules/.bin/$program" ] || return 1
  done
  [ "$(cat "$dir/.complete" 2>/dev/null)" = "${packages[*]}" ]
}

# Each package fetches or links the program of this machine after it is unpacked; one that runs has done so.
check_programs() {
  local program
  for program in "${programs[@]}"; do
    HOME="$dir/.home" "$dir/node_modules/.bin/$program" --version >"$dir/$program.version" 2>&1 </dev/null ||
      fail "$program does not run here; see $dir/$program.version"
    say "$program $(head -n 1 "$dir/$program.version")"
  done
}

[ $# -eq 1 ] && [ -n "$1" ] || fail "name one folder: install.sh DIR" 2
dir=$(realpath -m -- "$1")

if is_complete; then
  say "$dir is complete"
  exit 0
fi
command -v npm >/dev/null || fail "no npm found; install node 20 or newer"
mkdir -p "$dir/.home" || fail "cannot make the folder $dir; name one you may write to"

exec 9>"$dir/.lock"
flock 9
if is_complete; then # another call finished it while this one waited
  say "$dir is complete"
  exit 0
fi
rm -rf "$dir/.complete" "$dir/node_modules" "$dir/package.json" "$dir/package-lock.json"
say "installing ${packages[*]} into $dir (about a minute)"
npm install --prefix "$dir" --no-audit --no-fund --no-update-notifier --loglevel=error "${packages[@]}"
check_programs
printf '%s\n' "${packages[*]}" >"$dir/.complete"
say "installed in $dir"
