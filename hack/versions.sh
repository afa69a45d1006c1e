# Every version that is not pinned by a go.mod is pinned here, once.
# Sourced by the other scripts; sets variables and does nothing else.
#
# Pinned by modules instead:
#   the product, the reference CNI plugins, bpf2go  go.mod
#   Kubernetes                                      hack/tools/kubernetes/go.mod
#   containerd 2, CoreDNS                           hack/tools/{containerd,coredns}/go.mod
#   the tests of ClusterNetworkPolicy               hack/tools/network-policy-api/go.mod
#   golangci-lint, govulncheck                      hack/tools/lint/go.mod
#   cyclonus, which NetworkPolicy is compared with  hack/tools/cyclonus/go.mod

# The compiler of the BPF programs: Debian 12's.
CLANG_VERSION=14

# Debian's etcd, taken apart into out/tools and never installed: installing it
# would start a service. Any 3.4 or later serves the API server of the lab.
ETCD_MIN_VERSION=3.4
