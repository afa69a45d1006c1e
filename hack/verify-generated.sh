#!/usr/bin/env bash
# Generated files are what their sources make, compared in a copy of the tree.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

cd "$ROOT"
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
git ls-files -z --cached --others --exclude-standard | xargs -0 ls -d 2>/dev/null | tar -cT - |
	tar -xC "$copy"
cd "$copy"
git init -q
git add -A
go generate ./...
changed=$(git diff --name-only && git ls-files --others)
[[ -z $changed ]] ||
	die "generated files differ, run \`make generate\` and commit the result: $changed"
