#!/usr/bin/env bash
# Builds the Kubernetes programs that the labs run, from their Go module, into
# out/bin. About 5 minutes on two cores when nothing is cached; skipped when
# neither the module nor the Go version has changed since.
#   hack/build-kubernetes.sh          kube-apiserver and kube-proxy, all that the namespace lab needs
#   hack/build-kubernetes.sh all      every program of the VM lab, 3 minutes more
#   hack/build-kubernetes.sh NAME...  those; also of the upstream tests, e2e.test and
#                                     the programs of its images by the images' names
set -euo pipefail
. "$(dirname "$0")/lib.sh"

module=$ROOT/hack/tools/kubernetes
version=$(cd "$module" && GOFLAGS='' go list -m -f '{{.Version}}' k8s.io/kubernetes)
from=$(cat "$module/go.mod" "$module/go.sum" <(go env GOVERSION GOARCH) | sha256sum | cut -d' ' -f1)
# What `kubectl version` and the API's /version answer; Go modules do not set it.
pkg=k8s.io/component-base/version
IFS=. read -r major minor _ <<<"${version#v}"
stamp="-X $pkg.gitVersion=$version -X $pkg.gitMajor=$major -X $pkg.gitMinor=$minor"

stale=()

build() {
	local packages=() program
	cd "$module"
	mkdir -p "$OUT/bin/.new"
	export CGO_ENABLED=0 GOFLAGS=
	for program in "${stale[@]}"; do
		case $program in
		e2e.test) go test -c -buildvcs=false -ldflags "-s -w $stamp" -o "$OUT/bin/.new/e2e.test" k8s.io/kubernetes/test/e2e ;;
		agnhost | regression-issue-74839) packages+=("k8s.io/kubernetes/test/images/$program") ;;
		*) packages+=("k8s.io/kubernetes/cmd/$program") ;;
		esac
	done
	((${#packages[@]} == 0)) || go build -buildvcs=false -ldflags "-s -w $stamp" -o "$OUT/bin/.new/" "${packages[@]}"
	for program in "${stale[@]}"; do
		mv "$OUT/bin/.new/$program" "$OUT/bin/$program"
		echo "$from" >"$OUT/bin/$program.from"
	done
}

wanted=("$@")
((${#wanted[@]} > 0)) || wanted=(kube-apiserver kube-proxy)
if [[ ${wanted[*]} == all ]]; then
	wanted=(kube-apiserver kube-controller-manager kube-scheduler kube-proxy kubelet kubeadm kubectl)
fi
mkdir -p "$OUT/bin"
for program in "${wanted[@]}"; do
	built_from "$OUT/bin/$program" "$from" || stale+=("$program")
done
((${#stale[@]} == 0)) || progress "build Kubernetes $version: ${stale[*]}" build
