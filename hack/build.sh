#!/usr/bin/env bash
# Builds the programs of Kubeveil, the reference CNI plugins and the packages that are named into
# out/bin, all static. Go's build cache makes a repeat short.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

cd "$ROOT"
mkdir -p "$OUT/bin"
packages=("$@")
for dir in cmd/* plugins/veil; do
	compgen -G "$dir/*.go" >/dev/null && packages+=("./$dir")
done
plugins=github.com/containernetworking/plugins/plugins
packages+=("$plugins"/{ipam/host-local,main/loopback,main/ptp,meta/bandwidth,meta/portmap})
export CGO_ENABLED=0
progress "build the programs" \
	go build -trimpath -buildvcs=false -ldflags="$("$ROOT/hack/version.sh" --flags)" -o "$OUT/bin/" "${packages[@]}"
