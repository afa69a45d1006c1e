#!/usr/bin/env bash
# Prints the version of this tree, for the linker: VERSION when it is set, else what git says, else
# "unknown". Sources without git (an archive) are built with VERSION=v0.1.0 or the like.
set -euo pipefail
cd "$(dirname "$0")/.."
if [[ -n ${VERSION:-} ]]; then
	echo "$VERSION"
else
	# A tree in a folder of somebody else's repository must not get that one's version.
	[[ -e .git ]] && git describe --tags --always --dirty --abbrev=12 2>/dev/null || echo unknown
fi
