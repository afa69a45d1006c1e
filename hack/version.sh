#!/usr/bin/env bash
# Prints the version of this tree, for the linker: VERSION when it is set, else what git says, else
# "unknown". Sources without git (an archive) are built with VERSION=v0.1.0 or the like.
# With --flags it prints options of the linker that set version, commit and date of the commit.
set -euo pipefail
cd "$(dirname "$0")/.."
version=${VERSION:-} commit='' date=''
# A tree in a folder of another repository must not get the version of that repository.
if [[ -e .git ]]; then
	[[ -n $version ]] || version=$(git describe --tags --always --dirty --abbrev=12 2>/dev/null) || :
	read -r commit date < <(TZ=UTC git log -1 --date=format-local:%Y-%m-%dT%H:%M:%SZ \
		--format='%H %cd' 2>/dev/null) || :
fi
version=${version:-unknown}
if [[ ${1:-} == --flags ]]; then
	package=github.com/kubeveil/kubeveil/pkg/version
	echo "-X $package.stamped=$version -X $package.commit=$commit -X $package.date=$date"
else
	echo "$version"
fi
